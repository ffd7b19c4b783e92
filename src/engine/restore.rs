//! A sequence-state file from another program, into a sequence of this context.
//!
//! Nothing reaches llama.cpp before `state` has proven it well-formed. The file is opened once, without following a link. What
//! is loaded is a copy in memory (in this build's state version), and it is the copy that was checked, so it does not matter
//! who else writes to the file meanwhile. Where nothing else is to be known of the rows than that they are numbers, that
//! copy is the KV cache itself; rows that are not are zeroed there.

use std::fs::File;
use std::io::{BufReader, Seek};
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::llama::{self, Context, SeqId, Token};
use crate::state::{self, Checked, Expect, Layout, StateError};

use super::image::{Image, ImageMemory, Rewritten};
use super::probe::{Mismatch, Probe, Verdict};
use super::rows::RowsInFile;

/// What is read at a time where rows are passed over; the fields between them are small.
const FIELDS_SIZE: usize = 16 * 1024;

/// What is read at a time where everything is looked at.
const READ_SIZE: usize = 256 * 1024;

/// What a restore must keep to.
#[derive(Clone, Debug)]
pub(super) struct RestoreRules {
    /// The shape of this model's state files; the reason when handoff is not possible with it.
    pub layout: Result<Layout, String>,
    /// Whether the last position can be removed.
    pub can_step_back: bool,
    /// Tokens that a sequence may hold.
    pub n_ctx: u32,
    /// Window of sliding-window attention, 0 without.
    pub n_swa: u32,
    /// Look for NaN and infinity in the values.
    pub scan: bool,
    /// Threads that read, scan and load.
    pub n_threads: usize,
}

/// Why a file was refused. The sequence is to be cleared.
#[derive(Debug, thiserror::Error)]
pub(super) enum RestoreError {
    #[error("cannot open the state file: {0}")]
    Open(std::io::Error),
    #[error("no memory for the state file's {0} bytes: {1}")]
    Memory(u64, std::io::Error),
    #[error("the state file is {0}, not a regular file")]
    NotRegular(&'static str),
    #[error("cannot restore: {0}")]
    Unsupported(String),
    #[error("bad state file: {0}")]
    Bad(#[from] StateError),
    #[error("bad state file: it holds all {0} tokens, but this model cannot step back: it must hold the first {expected}", expected = .0 - 1)]
    CannotStepBack(usize),
    #[error("bad state file: token {0} is not in this model's vocabulary")]
    UnknownToken(Token),
    #[error("bad state file: somebody else wrote to it while it was read")]
    Changed,
    #[error("bad state file: its bytes are not those that were written")]
    Damaged,
    #[error("bad state file: {0}")]
    Values(Mismatch),
    #[error("llama.cpp refused the state file: {0}")]
    Load(crate::llama::Error),
    #[error("after the restore the sequence holds {found}, not positions up to {expected}")]
    Positions { found: String, expected: usize },
    #[error("the last position could not be removed from the restored sequence")]
    StepBack,
}

impl RestoreError {
    /// Whether it is the file that is bad, for everyone and for ever.
    pub fn blames_file(&self) -> bool {
        !matches!(
            self,
            Self::Open(_)
                | Self::Memory(..)
                | Self::Unsupported(_)
                | Self::StepBack
                | Self::Bad(StateError::Read { .. } | StateError::Write { .. })
        )
    }

    /// Whether [`restore_whole`] refused the file before anything of the sequence was touched.
    pub fn leaves_sequence(&self) -> bool {
        !matches!(self, Self::Load(_) | Self::Positions { .. } | Self::StepBack)
    }
}

/// Loads the file into the empty sequence `seq` and leaves it at all tokens of the prompt but the last. Returns how many
/// that are.
pub(super) fn restore(
    context: &mut Context,
    seq: SeqId,
    path: &Path,
    prompt: &[Token],
    rules: &RestoreRules,
    probe: &mut Probe,
    memory: &mut ImageMemory,
) -> Result<usize, RestoreError> {
    let layout = rules.layout.as_ref().map_err(|reason| RestoreError::Unsupported(reason.clone()))?;
    let mut file = open(path)?;
    let ids: Vec<i32> = prompt.iter().map(|token| token.0).collect();
    let (n_states, version) = states_in(&mut file, &ids, rules.can_step_back)?;
    let expect = Expect { ids: &ids, n_states, n_ctx: rules.n_ctx, scan: rules.scan };
    let proven = match version == layout.native && !probe.is_due() {
        true => prove_fields(file, layout, &expect)?,
        false => prove(file, version, layout, &expect, rules, memory)?,
    };
    let compared = compare_values(probe, proven.image.bytes(), layout, &prompt[..n_states])?;

    load(context, seq, &proven, layout, rules)?;
    proven.keep(memory);
    let next = prompt.len() - 1;
    expect_positions(context, seq, n_states, next, rules.n_swa)?;
    if n_states == prompt.len() {
        let from = i32::try_from(n_states - 1).unwrap_or(i32::MAX);
        if !context.remove(seq, from, -1).map_err(RestoreError::Load)? {
            return Err(RestoreError::StepBack);
        }
        if n_states > 1 {
            expect_positions(context, seq, n_states - 1, next, rules.n_swa)?;
        }
    }
    probe.count(compared);
    Ok(next)
}

/// Loads the file of any prompt into the sequence `seq`, all of it. Until it was found good, the sequence stays as it is.
/// Returns the prompt. `is_whole` sees the file's bytes.
pub(super) fn restore_whole(
    context: &mut Context,
    seq: SeqId,
    path: &Path,
    is_whole: &dyn Fn(&[u8]) -> bool,
    rules: &RestoreRules,
    probe: &mut Probe,
    memory: &mut ImageMemory,
) -> Result<Vec<Token>, RestoreError> {
    let layout = rules.layout.as_ref().map_err(|reason| RestoreError::Unsupported(reason.clone()))?;
    let mut file = open(path)?;
    let len = file.metadata().map_err(RestoreError::Open)?.len();
    let header = state::read_header(&mut BufReader::new(&mut file), len)?;
    file.rewind().map_err(RestoreError::Open)?;
    let prompt: Vec<Token> = header.ids.iter().copied().map(Token).collect();
    if let Some(unknown) = prompt.iter().find(|token| !context.model().vocab().contains(**token)) {
        return Err(RestoreError::UnknownToken(*unknown));
    }
    let expect = Expect { ids: &header.ids, n_states: prompt.len(), n_ctx: rules.n_ctx, scan: rules.scan };
    let proven = prove(file, header.version, layout, &expect, rules, memory)?;
    if !is_whole(proven.image.bytes()) {
        return Err(RestoreError::Damaged);
    }
    let compared = compare_values(probe, proven.image.bytes(), layout, &prompt)?;
    context.clear_seq(seq);
    load(context, seq, &proven, layout, rules)?;
    proven.keep(memory);
    expect_positions(context, seq, prompt.len(), prompt.len(), rules.n_swa)?;
    probe.count(compared);
    Ok(prompt)
}

/// Opens without following a link, and without waiting for the other end of a FIFO.
fn open(path: &Path) -> Result<File, RestoreError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::LOOP) => return Err(RestoreError::NotRegular("a symbolic link")),
        Err(err) => return Err(RestoreError::Open(err.into())),
    };
    let kind = file.metadata().map_err(RestoreError::Open)?.file_type();
    if kind.is_file() {
        return Ok(file);
    }
    Err(RestoreError::NotRegular(if kind.is_dir() { "a directory" } else { "a device or a pipe" }))
}

/// How many positions the file says it holds: all of the prompt, or all but the last. Anything else is left for the check
/// to describe. And the file's state version.
fn states_in(file: &mut File, ids: &[i32], can_step_back: bool) -> Result<(usize, u32), RestoreError> {
    let len = file.metadata().map_err(RestoreError::Open)?.len();
    let header = state::read_header(&mut BufReader::new(&mut *file), len)?;
    file.rewind().map_err(RestoreError::Open)?;
    let n_states = match header.ids.len() {
        n if n + 1 == ids.len() => n,
        n if n == ids.len() && !can_step_back => return Err(RestoreError::CannotStepBack(n)),
        _ if can_step_back => ids.len(),
        _ => ids.len() - 1,
    };
    Ok((n_states, header.version))
}

/// A file that passed: its bytes in this build's state version, and what was found in them.
struct Proven {
    image: Image,
    checked: Checked,
    /// Where its rows still are to be read, if they are not in the image.
    rows: Option<File>,
}

impl Proven {
    fn keep(self, memory: &mut ImageMemory) {
        if self.rows.is_none() {
            memory.keep(self.image);
        }
    }
}

/// Checks the file. Its structure is looked at before there is memory for it, so a file that only says to be large costs nothing.
fn prove(
    mut file: File,
    version: u32,
    layout: &Layout,
    expect: &Expect<'_>,
    rules: &RestoreRules,
    memory: &mut ImageMemory,
) -> Result<Proven, RestoreError> {
    let (len, checked) = check_structure(&file, layout, expect)?;
    if version == layout.native {
        let mut image = memory.take(len).map_err(|refused| RestoreError::Memory(len, refused))?;
        image.fill(&file, checked.pieces(len), expect.scan, rules.n_threads)?;
        expect_unchanged(&image, &checked, layout, expect)?;
        return Ok(Proven { image, checked, rows: None });
    }
    file.rewind().map_err(RestoreError::Open)?;
    let mut rewritten = Rewritten::new(len, memory).map_err(|refused| RestoreError::Memory(len, refused))?;
    let mut reader = BufReader::with_capacity(READ_SIZE, &mut file);
    let checked = state::check_and_convert(&mut reader, len, layout, expect, &mut rewritten)?;
    Ok(Proven { image: rewritten.into_image(), checked, rows: None })
}

/// Checks all of a file of this build's state version but its rows, which [`load`] does.
fn prove_fields(file: File, layout: &Layout, expect: &Expect<'_>) -> Result<Proven, RestoreError> {
    let (len, checked) = check_structure(&file, layout, expect)?;
    let mut image = Image::unread(len).map_err(|refused| RestoreError::Memory(len, refused))?;
    let fields = checked.pieces(len).into_iter().filter(|piece| !piece.has_rows()).collect();
    image.fill(&file, fields, false, 1)?;
    expect_unchanged(&image, &checked, layout, expect)?;
    Ok(Proven { image, checked, rows: Some(file) })
}

/// The file's length, and what is in it by its fields.
fn check_structure(file: &File, layout: &Layout, expect: &Expect<'_>) -> Result<(u64, Checked), RestoreError> {
    let len = file.metadata().map_err(RestoreError::Open)?.len();
    let mut reader = BufReader::with_capacity(FIELDS_SIZE, file);
    Ok((len, state::check_structure(&mut reader, len, layout, expect)?))
}

/// The fields were read twice. Those in memory are loaded, so they must be the ones that passed.
fn expect_unchanged(
    image: &Image,
    checked: &Checked,
    layout: &Layout,
    expect: &Expect<'_>,
) -> Result<(), RestoreError> {
    let mut bytes = image.bytes();
    let len = bytes.len() as u64;
    let read = state::check(&mut bytes, len, layout, &Expect { scan: false, ..*expect })?;
    if read == *checked && read.native { Ok(()) } else { Err(RestoreError::Changed) }
}

fn load(
    context: &mut Context,
    seq: SeqId,
    proven: &Proven,
    layout: &Layout,
    rules: &RestoreRules,
) -> Result<(), RestoreError> {
    let Proven { image, checked, rows } = proven;
    let parts = checked.parts(image.bytes(), layout, context.n_streams());
    let parts =
        parts.ok_or_else(|| RestoreError::Load(llama::Error::Invalid("a section is not in the file".to_owned())))?;
    let parts: Vec<&[u8]> = parts.iter().map(AsRef::as_ref).collect();
    let Some(file) = rows else {
        return context.load_state(seq, &parts, None, rules.n_threads).map_err(RestoreError::Load);
    };
    let rows = RowsInFile::new(file, image, checked, rules.scan);
    let loaded = context.load_state(seq, &parts, Some(&|address, to| rows.read(address, to)), rules.n_threads);
    match rows.into_error() {
        Some(error) => Err(error.into()),
        None => loaded.map_err(RestoreError::Load),
    }
}

/// A probe that cannot be made is no reason to refuse a file that is well-formed. `states` are the tokens that the file holds.
/// Says whether the values were compared.
fn compare_values(probe: &mut Probe, image: &[u8], layout: &Layout, states: &[Token]) -> Result<bool, RestoreError> {
    if !probe.is_due() {
        return Ok(false);
    }
    match probe.compare(image, layout, states) {
        Ok(Verdict::Good) => Ok(true),
        Ok(Verdict::Wrong(mismatch)) => Err(RestoreError::Values(mismatch)),
        Ok(Verdict::NotCompared) => {
            tracing::info!("the values of this state file cannot be compared (the next one's are)");
            Ok(false)
        }
        Err(reason) => {
            tracing::warn!("the values of the state file were not compared: {reason}");
            Ok(false)
        }
    }
}

/// The memory must hold what was promised: `n` positions from 0, or the end of them for a running state and for a window,
/// which is that of position `next`, the one to be evaluated.
fn expect_positions(context: &Context, seq: SeqId, n: usize, next: usize, n_swa: u32) -> Result<(), RestoreError> {
    let [last, next] = [n - 1, next].map(|position| i64::try_from(position).unwrap_or(i64::MAX));
    let found = context.positions(seq).map(|(first, last)| (i64::from(first), i64::from(last)));
    let first_at_most = match n_swa {
        _ if context.model().is_recurrent() => last,
        // Hybrid models report the first position that both memories hold, which is the running state's.
        _ if context.model().is_hybrid() => last,
        0 => 0,
        window => (next + 1 - i64::from(window)).max(0),
    };
    match found {
        Some((first, end)) if end == last && first <= first_at_most => Ok(()),
        found => Err(RestoreError::Positions {
            found: found.map_or_else(|| "nothing".to_owned(), |(first, last)| format!("positions {first} to {last}")),
            expected: n.saturating_sub(1),
        }),
    }
}
