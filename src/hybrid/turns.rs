//! Who may do what when: one provider run at a time, one request in the slot, and a few whose prompts are evaluated ahead.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures_util::FutureExt;
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The permits. Each is given in the order of asking.
pub(super) struct Turns {
    /// Requests in the slot and ahead of it.
    inside: Arc<Semaphore>,
    provider: Arc<Semaphore>,
    slot: Arc<Semaphore>,
}

/// A request's place among those inside.
pub(super) struct Place {
    inside: OwnedSemaphorePermit,
    provider: Waiting,
    slot: Waiting,
}

/// A permit that comes when its turn is there, or has come.
enum Waiting {
    Asked(Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>),
    Given(OwnedSemaphorePermit),
}

/// The right to use the slot; the last clone to go lets the next request in.
pub(super) type Turn = Arc<Held>;

/// What a request in the slot holds.
#[expect(dead_code, reason = "held, not read")]
pub(super) struct Held(OwnedSemaphorePermit, OwnedSemaphorePermit);

/// The right to run the provider.
pub(super) type ProviderTurn = OwnedSemaphorePermit;

impl Turns {
    /// Turns where the prompts of up to `n_ahead` requests are evaluated while another is in the slot.
    pub fn new(n_ahead: usize) -> Self {
        let semaphore = |n| Arc::new(Semaphore::new(n));
        Self {
            inside: semaphore(n_ahead.saturating_add(1).min(Semaphore::MAX_PERMITS)),
            provider: semaphore(1),
            slot: semaphore(1),
        }
    }

    /// Waits to be let in. First in, first out: who is let in has its places in both queues from then on, so that one whose
    /// prompt needs no provider does not overtake one that does.
    pub async fn enter(&self) -> Result<Place, AcquireError> {
        let inside = self.inside.clone().acquire_owned().await?;
        Ok(Place { inside, provider: Waiting::new(&self.provider)?, slot: Waiting::new(&self.slot)? })
    }

    /// Nobody gets a turn any more.
    pub fn close(&self) {
        for semaphore in [&self.inside, &self.provider, &self.slot] {
            semaphore.close();
        }
    }
}

impl Place {
    /// Waits for the provider. The right goes with its value.
    pub async fn provider(self) -> Result<(ProviderTurn, SlotPlace), AcquireError> {
        let Self { inside, provider, slot } = self;
        Ok((provider.get().await?, SlotPlace { inside, slot }))
    }

    /// The same place, without a wish for the provider.
    pub fn without_provider(self) -> SlotPlace {
        SlotPlace { inside: self.inside, slot: self.slot }
    }
}

/// A request's place before the slot.
pub(super) struct SlotPlace {
    inside: OwnedSemaphorePermit,
    slot: Waiting,
}

impl SlotPlace {
    /// Waits for the slot.
    pub async fn slot(self) -> Result<Turn, AcquireError> {
        Ok(Arc::new(Held(self.slot.get().await?, self.inside)))
    }
}

impl Waiting {
    /// Takes a place in the queue.
    fn new(semaphore: &Arc<Semaphore>) -> Result<Self, AcquireError> {
        let mut asked: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(semaphore.clone().acquire_owned());
        // Asking is what puts it into the queue.
        match (&mut asked).now_or_never() {
            Some(permit) => Ok(Self::Given(permit?)),
            None => Ok(Self::Asked(asked)),
        }
    }

    async fn get(self) -> Result<OwnedSemaphorePermit, AcquireError> {
        match self {
            Self::Asked(asked) => asked.await,
            Self::Given(permit) => Ok(permit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_slot_is_given_in_the_order_of_entry() {
        let turns = Turns::new(1);
        let first = turns.enter().await.unwrap().without_provider().slot().await.unwrap();
        let second = turns.enter().await.unwrap();
        assert!(turns.enter().now_or_never().is_none(), "one in the slot, one ahead");
        let (provider, second) = second.provider().await.unwrap();
        drop(first);
        let third = turns.enter().await.unwrap();
        let mut third = Box::pin(third.without_provider().slot());
        assert!((&mut third).now_or_never().is_none(), "the slot is the second's, whose provider runs");
        drop(provider);
        drop(second.slot().await.unwrap());
        third.await.unwrap();
    }

    #[tokio::test]
    async fn one_provider_at_a_time() {
        let turns = Turns::new(2);
        let (provider, _first) = turns.enter().await.unwrap().provider().await.unwrap();
        let mut second = Box::pin(turns.enter().await.unwrap().provider());
        assert!((&mut second).now_or_never().is_none());
        drop(provider);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_leaves_makes_room() {
        let turns = Turns::new(0);
        let first = turns.enter().await.unwrap();
        assert!(turns.enter().now_or_never().is_none());
        drop(first);
        turns.enter().await.unwrap().without_provider().slot().await.unwrap();
        turns.close();
        assert!(turns.enter().await.is_err());
    }
}
