//! The names of states.

use std::fmt;
use std::str::FromStr;

/// Hexadecimal digits of the hash of a state's ids.
const N_IDS: usize = 32;
/// Hexadecimal digits of the hash of its bytes.
const N_SUM: usize = 16;

const SUFFIX: &str = ".state";
/// Behind the hashes of what another program computed.
const FOREIGN: &str = "-provider";

/// `<hash of the ids>-<hash of the file>[-provider].state`, hashes being the first digits of BLAKE3.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    ids: String,
    sum: String,
    is_foreign: bool,
}

impl Name {
    /// The name of a file with these bytes, whose header holds these ids.
    pub fn of(ids: &[i32], bytes: &[u8], is_foreign: bool) -> Self {
        Self { ids: hash_of_ids(ids), sum: digits(blake3::hash(bytes), N_SUM), is_foreign }
    }

    /// Whether another program computed it.
    pub fn is_foreign(&self) -> bool {
        self.is_foreign
    }

    /// Whether these are the ids that it was written for.
    pub fn is_of(&self, ids: &[i32]) -> bool {
        self.ids == hash_of_ids(ids)
    }

    /// Whether these are the bytes that were written.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        self.has_sum(blake3::hash(bytes))
    }

    pub(super) fn has_sum(&self, hash: blake3::Hash) -> bool {
        self.sum == digits(hash, N_SUM)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let foreign = if self.is_foreign { FOREIGN } else { "" };
        write!(f, "{}-{}{foreign}{SUFFIX}", self.ids, self.sum)
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let text = text.strip_suffix(SUFFIX).ok_or(())?;
        let (text, is_foreign) = text.strip_suffix(FOREIGN).map_or((text, false), |text| (text, true));
        let (ids, sum) = text.split_once('-').ok_or(())?;
        let is_hex =
            |text: &str, n| text.len() == n && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if !is_hex(ids, N_IDS) || !is_hex(sum, N_SUM) {
            return Err(());
        }
        Ok(Self { ids: ids.to_owned(), sum: sum.to_owned(), is_foreign })
    }
}

fn hash_of_ids(ids: &[i32]) -> String {
    let mut hasher = blake3::Hasher::new();
    for id in ids {
        hasher.update(&id.to_le_bytes());
    }
    digits(hasher.finalize(), N_IDS)
}

pub(super) fn digits(hash: blake3::Hash, n: usize) -> String {
    let mut text = hash.to_hex().to_string();
    text.truncate(n);
    text
}
