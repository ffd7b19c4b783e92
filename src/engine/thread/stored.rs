//! What the prefix store holds of a prompt, and what it gets of what was evaluated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::llama::{self, Context, Model, Token};
use crate::store::{Identity, Memory, Store, StoreConfig, identity};

use super::held::Held;
use super::{DecodeLoop, RestoreRules, seq_id};
use crate::engine::probe::Probe;
use crate::engine::slot::Job;
use crate::engine::{EngineConfig, restore, save};

/// An open store, and the probe of what comes from it: a provider that was found right says nothing of these files.
pub(in crate::engine) struct Stored {
    pub store: Arc<Store>,
    pub probe: Probe,
}

/// Opens the store of a loaded model. Without one, answers are the same, so a store that cannot be used is only told.
pub(in crate::engine) fn open(
    config: &EngineConfig,
    store: &StoreConfig,
    context: &Context,
    rules: &RestoreRules,
) -> Option<Arc<Store>> {
    let off = |reason: String| tracing::warn!("prefix store: {}: {reason} (it is not used)", store.dir.display());
    if let Err(reason) = &rules.layout {
        off(reason.clone());
        return None;
    }
    let max_cut = match (rules.can_step_back, rules.n_swa) {
        (true, 0) => usize::MAX,
        (true, _) => 1,
        (false, _) => 0,
    };
    let memory = Memory { n_ctx: rules.n_ctx as usize, max_cut };
    let opened = identity(config, context.model(), context.n_ctx_seq()).and_then(|identity| {
        let opened = Store::open(store.clone(), &identity, memory);
        opened.map_err(|err| err.to_string())
    });
    opened.map(Arc::new).map_err(off).ok()
}

/// Flash attention is no part of it: a layout of state files is there only with it (or without attention).
fn identity(config: &EngineConfig, model: &Model, n_ctx: u32) -> Result<Identity, String> {
    let original = model.metadata("general.architecture").and_then(|architecture| {
        model.metadata(&format!("{architecture}.rope.scaling.original_context_length"))?.parse().ok()
    });
    let about = identity::About {
        model: config.model.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        description: model.description(),
        cache_type_k: config.cache_type_k.to_string(),
        cache_type_v: config.cache_type_v.to_string(),
        state_version: llama::state_version(),
        long_rope: n_ctx > original.unwrap_or(model.n_ctx_train()),
    };
    let parts = identity::parts_of(&config.model).into_iter().map(|path| {
        let outline = llama::gguf::outline(&path).map_err(|err| err.to_string())?;
        Ok(identity::ModelPart { path, data: outline.data, tensors: outline.tensors })
    });
    let parts: Vec<_> = parts.collect::<Result<_, String>>()?;
    Identity::read(about, &parts).map_err(|err| err.to_string())
}

impl DecodeLoop {
    /// Restores from the store what spares clearly more of a job's prompt than the first `n_cached` tokens that its sequence
    /// holds. Returns how many it holds now, and the time that a restore took.
    pub(super) fn take_stored(&mut self, seq: usize, job: &Job, n_cached: usize) -> (usize, Option<Duration>) {
        // After a first try that was no numbers, nothing is trusted.
        let Some(stored) = self.stored.as_mut().filter(|_| job.uses_store && !job.is_retry) else {
            return (n_cached, None);
        };
        let started = Instant::now();
        let Some(found) = stored.store.find(&ids(&job.tokens), n_cached) else { return (n_cached, None) };
        let seq_id = seq_id(seq);
        let is_whole = |bytes: &[u8]| found.name.holds(bytes);
        let (rules, probe, memory) = (&self.limits.restore, &mut stored.probe, &mut self.image_memory);
        let restored = restore::restore_whole(&mut self.context, seq_id, &found.path, &is_whole, rules, probe, memory);
        let store = stored.store.clone();
        match restored {
            Ok(tokens) => {
                self.held[seq].checkpoints.clear();
                self.held[seq].is_from_file = false;
                let held = Held { tokens, ..Held::default() };
                let n_kept = self.keep(seq, &held, &job.tokens);
                if n_kept > 0 {
                    store.used(&found);
                    self.held[seq].is_foreign = found.name.is_foreign();
                    return (n_kept, Some(started.elapsed()));
                }
            }
            Err(reason) => {
                if reason.blames_file() {
                    store.refuse(&found, &reason);
                } else {
                    tracing::info!("prefix store: {reason}");
                    store.missed(&found);
                }
                if reason.leaves_sequence() {
                    return (n_cached, None);
                }
            }
        }
        self.context.clear_seq(seq_id);
        self.held[seq].clear();
        (0, None)
    }

    /// Stores a prompt's state at the place that the same prompt goes on from later, if this is it, when the memory cannot be cut
    /// back to it: a running state before the last token, a window after it (one step back is in its state). With plain
    /// attention the end of the job is soon enough, which is after all that anybody waits for.
    pub(super) fn store_prompt(&mut self, seq: usize) {
        let rules = &self.limits.restore;
        let n_left = match (rules.can_step_back, rules.n_swa) {
            (true, 0) => return,
            (true, _) => 0,
            (false, _) => 1,
        };
        let Some(slot) = self.slots[seq].as_ref().filter(|slot| slot.job.uses_store) else { return };
        if slot.n_past + n_left == slot.job.tokens.len() {
            let tokens = slot.job.tokens[..slot.n_past].to_vec();
            self.store_tokens(seq, &tokens);
        }
    }

    /// Gives the store a state of these tokens, which a sequence holds, if it wants one.
    pub(super) fn store_tokens(&mut self, seq: usize, tokens: &[Token]) {
        let is_known = !self.needs_wipe && !self.held[seq].is_from_file;
        let Some(stored) = self.stored.as_ref().filter(|_| is_known) else { return };
        let (store, ids) = (stored.store.clone(), ids(tokens));
        if !store.wants(&ids) || self.context.state_size(seq_id(seq)) > store.max_bytes() {
            return;
        }
        match save::bytes(&mut self.context, seq_id(seq), tokens, &self.limits.restore.layout) {
            Ok(bytes) => store.put(ids, bytes, self.held[seq].is_foreign),
            Err(err) => tracing::warn!("prefix store: a state cannot be taken: {err}"),
        }
    }
}

fn ids(tokens: &[Token]) -> Vec<i32> {
    tokens.iter().map(|token| token.0).collect()
}
