//! The order in which a file's tensors are first touched.
//!
//! Execution order is made of short runs of file order, so that is how it is kept.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::format::MAX_TENSORS;

/// An order keeps its first so many runs: 128 KiB.
const MAX_RUNS: usize = 16 << 10;

/// Indices of tensors, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Run>")]
pub struct Order(Box<[Run]>);

/// The first tensor and how many follow one another from there on, in file order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Run(u32, u32);

/// Learns the order of one open, whose reads may come in several threads at once. Only the first touch of a tensor takes
/// a lock.
#[derive(Debug)]
pub struct OrderRecorder {
    /// A bit for each tensor.
    seen: Box<[AtomicU64]>,
    runs: Mutex<Vec<Run>>,
}

impl Order {
    /// The tensors in their order, as `extent::plan` takes them.
    pub fn to_vec(&self) -> Vec<u32> {
        self.0.iter().flat_map(|Run(first, count)| *first..first + count).collect()
    }

    /// The memory that it takes is proportional to this.
    pub(super) fn run_count(&self) -> usize {
        self.0.len()
    }
}

impl TryFrom<Vec<Run>> for Order {
    type Error = &'static str;

    fn try_from(runs: Vec<Run>) -> Result<Self, Self::Error> {
        let mut total = 0usize;
        for Run(first, count) in &runs {
            total += *count as usize;
            let end = *first as usize + *count as usize;
            if *count == 0 || end > MAX_TENSORS || total > MAX_TENSORS {
                return Err("an order of tensors that no file can have");
            }
        }
        if runs.len() > MAX_RUNS {
            return Err("an order of tensors with too many runs");
        }
        Ok(Order(runs.into()))
    }
}

impl OrderRecorder {
    /// For a file of `tensor_count` tensors.
    pub fn new(tensor_count: usize) -> Self {
        let words = tensor_count.min(MAX_TENSORS).div_ceil(64);
        OrderRecorder { seen: (0..words).map(|_| AtomicU64::new(0)).collect(), runs: Mutex::default() }
    }

    /// Counts if it is the first touch of this tensor.
    pub fn touch(&self, tensor: usize) {
        let Some(word) = self.seen.get(tensor / 64) else { return };
        let bit = 1 << (tensor % 64);
        if word.load(Relaxed) & bit != 0 || word.fetch_or(bit, Relaxed) & bit != 0 {
            return;
        }
        let mut runs = self.runs.lock();
        let tensor = tensor as u32;
        let is_full = runs.len() > MAX_RUNS;
        match runs.last_mut() {
            _ if is_full => {}
            Some(Run(first, count)) if *first + *count == tensor => *count += 1,
            _ => runs.push(Run(tensor, 1)),
        }
    }

    /// The order so far.
    pub fn order(&self) -> Order {
        let runs = self.runs.lock();
        // The run after the last one only marks that the order is full.
        Order(runs[..runs.len().min(MAX_RUNS)].into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn an_order_is_kept_as_runs_and_saved_as_pairs() {
        let recorder = OrderRecorder::new(100);
        [7, 8, 8, 9, 3, 7, 10, 0].into_iter().for_each(|tensor| recorder.touch(tensor));
        let order = recorder.order();
        assert_eq!(order.to_vec(), [7, 8, 9, 3, 10, 0]);
        let saved = serde_json::to_string(&order).unwrap();
        assert_eq!(saved, "[[7,3],[3,1],[10,1],[0,1]]");
        assert_eq!(serde_json::from_str::<Order>(&saved).unwrap(), order);
    }

    #[test]
    fn saved_orders_are_not_believed_blindly() {
        for saved in ["[[0,0]]", "[[4294967295,4294967295]]", "[[0,524288],[0,524288]]", "[[1]]", "[[-1,2]]"] {
            assert!(serde_json::from_str::<Order>(saved).is_err(), "{saved}");
        }
    }

    #[test]
    fn an_order_of_too_many_runs_keeps_its_beginning() {
        let recorder = OrderRecorder::new(MAX_TENSORS);
        (0..MAX_TENSORS).step_by(2).for_each(|tensor| recorder.touch(tensor));
        let order = recorder.order();
        assert_eq!(order.run_count(), MAX_RUNS);
        assert!(order.to_vec().into_iter().eq((0..2 * MAX_RUNS as u32).step_by(2)));
    }

    proptest! {
        #[test]
        fn the_order_is_that_of_first_touches(touches in prop::collection::vec(0usize..300, 0..500)) {
            let recorder = OrderRecorder::new(256);
            let mut expected = Vec::new();
            for tensor in touches {
                recorder.touch(tensor);
                if tensor < 256 && !expected.contains(&(tensor as u32)) {
                    expected.push(tensor as u32);
                }
            }
            prop_assert_eq!(recorder.order().to_vec(), expected);
        }
    }
}
