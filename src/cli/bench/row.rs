//! A line of the table: the runs of one combination.

use std::time::Duration;

use super::measure::{Sample, rate};

/// Who evaluates the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// This process, from nothing.
    Cold,
    /// The provider.
    Hybrid,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Cold => "cold",
            Kind::Hybrid => "hybrid",
        }
    }
}

/// The middle of several runs, and how far they lie apart.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// `None` without a value.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (least, most) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median = if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Self { median, least, most })
    }
}

/// Times are in milliseconds, rates in tokens a second. `None`: there is no such step.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub device: String,
    pub kind: Kind,
    pub n_prompt: u32,
    pub parallel: u32,
    pub provider: Option<Spread>,
    pub prefill: Option<Spread>,
    pub prefill_rate: Option<Spread>,
    pub restore: Option<Spread>,
    pub first_byte: Option<Spread>,
    /// The first byte without the provider's run.
    pub handoff: Option<Spread>,
    pub decode_rate: Option<Spread>,
}

impl Row {
    pub(super) fn new(device: String, kind: Kind, n_prompt: u32, parallel: u32, samples: &[Sample]) -> Self {
        let ms = |time: &dyn Fn(&Sample) -> Option<Duration>| {
            Spread::of(samples.iter().filter_map(time).map(|time| time.as_secs_f64() * 1e3).collect())
        };
        let n_evaluated = n_prompt as usize * parallel as usize;
        let prefill_rates = samples.iter().filter_map(|sample| Some(rate(n_evaluated, sample.prefill?))).collect();
        Self {
            device,
            kind,
            n_prompt,
            parallel,
            provider: ms(&|sample| sample.provider),
            prefill: ms(&|sample| sample.prefill),
            prefill_rate: Spread::of(prefill_rates),
            restore: ms(&|sample| sample.restore),
            first_byte: ms(&|sample| Some(sample.first_byte)),
            handoff: ms(&|sample| Some(sample.first_byte.saturating_sub(sample.provider?))),
            decode_rate: Spread::of(samples.iter().map(|sample| sample.decode_rate).collect()),
        }
    }

    /// The numbers by the names that JSON has for them.
    pub(super) fn values(&self) -> [(&'static str, Option<Spread>); 7] {
        [
            ("provider_ms", self.provider),
            ("prefill_tokens_per_s", self.prefill_rate),
            ("prefill_ms", self.prefill),
            ("restore_ms", self.restore),
            ("first_byte_ms", self.first_byte),
            ("handoff_ms", self.handoff),
            ("decode_tokens_per_s", self.decode_rate),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one_or_lies_between_two() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 10.0]), Some(Spread { median: 3.0, least: 1.0, most: 10.0 }));
        assert_eq!(Spread::of(vec![4.0, 1.0]), Some(Spread { median: 2.5, least: 1.0, most: 4.0 }));
    }

    #[test]
    fn a_handoff_is_the_first_byte_without_the_provider() {
        let sample = Sample {
            provider: Some(Duration::from_millis(30)),
            prefill: None,
            restore: Some(Duration::from_millis(2)),
            first_byte: Duration::from_millis(45),
            decode_rate: 10.0,
        };
        let row = Row::new("CPU".into(), Kind::Hybrid, 8, 1, &[sample]);
        assert_eq!(row.handoff.map(|spread| spread.median), Some(15.0));
        assert_eq!(row.prefill_rate, None);
        let cold = Sample { provider: None, prefill: Some(Duration::from_millis(500)), ..sample };
        let row = Row::new("CPU".into(), Kind::Cold, 8, 4, &[cold]);
        assert_eq!(row.prefill_rate.map(|spread| spread.median), Some(64.0), "of all sequences together");
        assert_eq!(row.handoff, None);
    }
}
