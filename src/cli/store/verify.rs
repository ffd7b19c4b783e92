//! `onebit store verify`.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::engine::{CacheType, Engine};
use crate::store::list::{Entry, Family};

use super::super::state::{self, CacheArgs};
use super::super::{Failure, print};
use super::{families, short, title};

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Folder of the store
    dir: PathBuf,

    /// GGUF file of a model whose states are to be checked against it
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
}

pub(super) fn main(args: &VerifyArgs) -> Result<(), Failure> {
    let families = families(&args.dir)?;
    let mut engines = Engines(HashMap::new());
    let (mut n_good, mut n_bad, mut n_of_model) = (0, 0, 0);
    for family in families.iter().filter(|family| !family.entries.is_empty()) {
        let engine = match &args.model {
            Some(model) => engines.for_family(model, family)?,
            None => None,
        };
        for entry in &family.entries {
            n_of_model += usize::from(engine.is_some());
            match problem(entry, engine) {
                None => n_good += 1,
                Some(problem) => {
                    n_bad += 1;
                    print(&format!("{}: {}: {problem}\n", title(family), short(entry)))?;
                }
            }
        }
    }
    print(&format!("{n_good} good, {n_bad} bad\n"))?;
    if let Some(model) = args.model.as_ref().filter(|_| n_of_model == 0) {
        return Err(Failure::new(1, format!("no state in {} is of {}", args.dir.display(), model.display())));
    }
    // Everything was said.
    if n_bad > 0 { Err(Failure::new(1, "")) } else { Ok(()) }
}

fn problem(entry: &Entry, engine: Option<&Engine>) -> Option<String> {
    if let Err(problem) = entry.verify() {
        return Some(problem);
    }
    state::refusal(&entry.path, engine?).unwrap_or_else(|failure| Some(failure.message))
}

/// The model, loaded once for each pair of cache types.
struct Engines(HashMap<(String, String), Engine>);

impl Engines {
    /// `None` when the family is another model's. A model is known by llama.cpp's words for it: what is of the same shape passes
    /// the same checks.
    fn for_family(&mut self, model: &Path, family: &Family) -> Result<Option<&Engine>, Failure> {
        let Some(about) = &family.about else { return Ok(None) };
        let types = [&about.cache_type_k, &about.cache_type_v].map(|name| name.parse::<CacheType>().ok());
        let [Some(cache_type_k), Some(cache_type_v)] = types else { return Ok(None) };
        let engine = match self.0.entry((about.cache_type_k.clone(), about.cache_type_v.clone())) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => slot.insert(state::load(model, &CacheArgs { cache_type_k, cache_type_v })?),
        };
        Ok(Some(&*engine).filter(|engine| engine.info().description == about.description))
    }
}
