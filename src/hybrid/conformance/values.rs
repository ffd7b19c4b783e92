//! The values of a state file against this build's own, and what a difference looks like it is.

use std::path::Path;

use super::limits::{gain_limit, relative_limit};
use super::trial::open;
use super::{Area, CheckError, Fault, WorstTensor};
use crate::engine::Engine;
use crate::state::{self, BlockDiff, BlockId, BlockRows, Errors, Layout, Tensor, ggml_type::dequantize};

/// Positions looked at to find out what a wrong tensor is.
const N_ROWS: u32 = 64;
/// From this cosine on, two tensors are taken for the same one. Different tensors of a model are nearly orthogonal;
/// tensors that are alike but for noise within [`MAX_RELATIVE`](super::limits::MAX_RELATIVE) have 0.98.
const SAME: f64 = 0.97;
/// Up to this cosine, two tensors have nothing to do with each other: other weights. A rope of another kind leaves more.
const UNRELATED: f64 = 0.3;
/// Faults of this kind that are told one by one; of a hundred layers the first few say it all.
const MAX_TOLD: usize = 3;

/// The two state files of one prompt.
pub(super) struct Files<'a> {
    pub own: &'a Path,
    pub theirs: &'a Path,
}

/// Compares every tensor, notes faults, and returns the one that is farthest off.
pub(super) fn compare(
    engine: &Engine,
    files: &Files<'_>,
    faults: &mut Vec<Fault>,
) -> Result<Option<WorstTensor>, CheckError> {
    let layout = engine.state_layout().map_err(|reason| CheckError::Layout(reason.to_owned()))?;
    let ((mut own, own_len), (mut theirs, their_len)) = (open(files.own)?, open(files.theirs)?);
    let diff = state::diff((&mut own, own_len), (&mut theirs, their_len), layout, None).map_err(CheckError::Own)?;
    let compared: Vec<(&BlockDiff, Errors)> =
        diff.blocks.iter().filter_map(|block| Some((block, block.errors?))).collect();

    // What is not a number is not near.
    let (near, off): (Vec<_>, Vec<_>) =
        compared.iter().copied().partition(|(block, errors)| residual(errors) <= relative_limit(block.row.ty));
    let mut texts = Vec::new();
    if !off.is_empty() {
        texts.extend(explain(&off, &near, files, layout)?);
    }
    texts.extend(tell(&near.iter().filter_map(|(block, errors)| scaled(block, errors)).collect::<Vec<_>>()));
    faults.extend(texts.into_iter().map(|text| Fault { area: Area::Values, text }));

    let worst = compared.iter().max_by(|(_, a), (_, b)| a.relative_l2.total_cmp(&b.relative_l2));
    Ok(worst.map(|(block, errors)| WorstTensor { id: block.id, relative_l2: errors.relative_l2 }))
}

/// The relative error that is left when the gain is taken out. `g * a` is the foot of the perpendicular from `b` to `a`'s
/// line, so the two parts of the error add up in squares.
fn residual(errors: &Errors) -> f64 {
    (errors.relative_l2.powi(2) - (errors.gain - 1.0).powi(2)).max(0.0).sqrt()
}

/// What a tensor's gain says, if it says something: see [`gain_limit`]. For tensors whose [`residual`] is within the limit.
fn scaled(block: &BlockDiff, errors: &Errors) -> Option<String> {
    let is_scaled = (errors.gain - 1.0).abs() > gain_limit(residual(errors), block.positions.len())
        || errors.relative_l2 > relative_limit(block.row.ty);
    is_scaled.then(|| {
        format!(
            "{} is {:.4} times this build's own: a scale is applied twice, or is missing, or is another one; or numbers are \
             truncated where they are to be rounded",
            block.id, errors.gain
        )
    })
}

/// What is known of tensors that are off. One cause makes many tensors wrong, so it says one thing if it can.
fn explain(
    off: &[(&BlockDiff, Errors)],
    near: &[(&BlockDiff, Errors)],
    files: &Files<'_>,
    layout: &Layout,
) -> Result<Vec<String>, CheckError> {
    let own = Rows::read(files.own, layout)?;
    let theirs = Rows::read(files.theirs, layout)?;
    let found: Vec<(BlockId, Option<Match>)> =
        off.iter().map(|(block, _)| (block.id, theirs.get(block.id).and_then(|rows| own.find(rows)))).collect();

    let swapped = found.iter().filter(|(id, found)| found.is_some_and(|found| found.is_swap_of(*id))).count();
    if swapped > 0 && swapped == found.len() {
        return Ok(vec!["K and V are swapped: the file's K is this build's V, and its V this build's K".to_owned()]);
    }
    let matches: Vec<String> = found.iter().filter_map(|(id, found)| Some(found.as_ref()?.text(*id))).collect();
    if !matches.is_empty() {
        return Ok(tell(&matches));
    }
    if near.is_empty() && off.iter().all(|(_, errors)| errors.cosine.abs() < UNRELATED) {
        return Ok(vec![
            "no tensor has anything to do with this build's own: the state of another model's weights, or of another prompt"
                .to_owned(),
        ]);
    }
    if off.iter().all(|(block, _)| block.id.tensor == Tensor::K) && near.iter().any(|(b, _)| b.id.tensor == Tensor::V) {
        let (first, errors) = off[0];
        return Ok(vec![format!(
            "K is another one in {} layers, the first is {} (relative error {:.3}), and V is right: the positions that RoPE \
             turns by (do they begin at 0?), its base or scaling, the order of its dimensions, or a norm of K",
            off.len(),
            first.id,
            errors.relative_l2
        )]);
    }
    let texts: Vec<String> = in_computing_order(off).iter().map(|(block, errors)| off_text(block, errors)).collect();
    Ok(tell(&texts))
}

/// Layer by layer, as a model computes: the first that is wrong is where to look.
fn in_computing_order<'a>(off: &[(&'a BlockDiff, Errors)]) -> Vec<(&'a BlockDiff, Errors)> {
    let mut ordered = off.to_vec();
    ordered.sort_by_key(|(block, _)| block.id.layer);
    ordered
}

fn off_text(block: &BlockDiff, errors: &Errors) -> String {
    format!(
        "{}: relative error {:.3}, at most {:.3} is allowed (gain {:.3}, cosine {:.4}, worst at position {})",
        block.id,
        errors.relative_l2,
        relative_limit(block.row.ty),
        errors.gain,
        errors.cosine,
        errors.worst
    )
}

/// The first few, and how many more there are.
fn tell(texts: &[String]) -> Vec<String> {
    let mut told: Vec<String> = texts.iter().take(MAX_TOLD).cloned().collect();
    if let Some(last) = told.last_mut().filter(|_| texts.len() > MAX_TOLD) {
        last.push_str(&format!("; and {} more tensors", texts.len() - MAX_TOLD));
    }
    told
}

/// One of our own tensors that a tensor of theirs turned out to be.
#[derive(Clone, Copy)]
struct Match {
    id: BlockId,
    /// Their row `i` is our row `i + lag`.
    lag: i64,
}

impl Match {
    fn is_swap_of(&self, id: BlockId) -> bool {
        let same_layer = (self.id.section, self.id.layer) == (id.section, id.layer);
        same_layer && self.lag == 0 && self.id.tensor != id.tensor
    }

    /// `theirs` names the tensor that was matched.
    fn text(&self, theirs: BlockId) -> String {
        let rows = match self.lag {
            0 => String::new(),
            1 => ", its rows shifted by one: row 0 holds position 1".to_owned(),
            _ => ", its rows shifted by one: row 1 holds position 0".to_owned(),
        };
        if self.id == theirs {
            return format!("the file's {theirs} is right{rows}");
        }
        format!("the file's {theirs} is this build's {}{rows}", self.id)
    }
}

/// The first rows of each tensor of a file, as numbers.
struct Rows(Vec<(BlockRows, Vec<f32>)>);

impl Rows {
    fn read(path: &Path, layout: &Layout) -> Result<Self, CheckError> {
        let (mut reader, len) = open(path)?;
        // A window has moved past the first positions of a long prompt; what it holds is not looked for then.
        let blocks = state::first_rows(&mut reader, len, layout, N_ROWS).map_err(CheckError::Own)?;
        let with_values = blocks.into_iter().map(|block| {
            let mut values = Vec::new();
            dequantize(block.row.ty, &block.bytes, &mut values);
            (block, values)
        });
        Ok(Self(with_values.collect()))
    }

    fn get(&self, id: BlockId) -> Option<&(BlockRows, Vec<f32>)> {
        self.0.iter().find(|(block, _)| block.id == id)
    }

    /// Which of these tensors `theirs` is, if it is not the one that it should be.
    fn find(&self, (theirs, values): &(BlockRows, Vec<f32>)) -> Option<Match> {
        if self.get(theirs.id).is_some_and(|(_, own_values)| cosine(own_values, values) > SAME) {
            return None;
        }
        let row = usize::try_from(theirs.row.n_values()).unwrap_or(usize::MAX).min(values.len());
        let alike = self.0.iter().filter(|(own, _)| own.row == theirs.row && own.positions == theirs.positions);
        let best = alike
            .flat_map(|(own, own_values)| {
                let shifts = [
                    (0, &own_values[..], &values[..]),
                    (1, &own_values[row..], values),
                    (-1, own_values, &values[row..]),
                ];
                shifts.map(|(lag, own_values, values)| (Match { id: own.id, lag }, cosine(own_values, values)))
            })
            .max_by(|(_, a), (_, b)| a.total_cmp(b));
        best.filter(|(_, cosine)| *cosine > SAME).map(|(found, _)| found)
    }
}

/// Of as many values as both have; 0 when there are none.
fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let (mut aa, mut bb, mut ab) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b).map(|(a, b)| (f64::from(*a), f64::from(*b))) {
        aa += a * a;
        bb += b * b;
        ab += a * b;
    }
    if aa > 0.0 && bb > 0.0 { ab / (aa * bb).sqrt() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::super::limits::MAX_RELATIVE;
    use super::*;

    #[test]
    fn noise_within_the_limit_is_still_the_same_tensor() {
        // b = a + e with e orthogonal to a
        let cosine = 1.0 / (1.0 + MAX_RELATIVE.powi(2)).sqrt();
        assert!(cosine > SAME, "{cosine}");
    }
}
