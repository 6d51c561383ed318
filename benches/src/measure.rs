//! Samples in pairs, and what they come to.

use serde::Serialize;

use crate::error::Result;

/// The middle and the ends of a number of values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// # Panics
    /// Where there is no value.
    pub fn of(values: &[f64]) -> Self {
        let sorted = sorted(values);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Self { median, min: sorted[0], max: sorted[sorted.len() - 1] }
    }
}

/// The value that `share` (0 to 1) of all values do not exceed: the nearest rank.
///
/// # Panics
/// Where there is no value.
pub fn percentile(values: &[f64], share: f64) -> f64 {
    let sorted = sorted(values);
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

fn sorted(values: &[f64]) -> Vec<f64> {
    assert!(!values.is_empty(), "nothing was measured");
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

/// Takes one sample of the plain folder and one of the mount, `pairs` times in turn, after one of each that is not
/// counted: it pays for what happens once (the first touch of buffers, a host that caches the disk).
pub fn interleave<T>(
    pairs: usize,
    mut native: impl FnMut() -> Result<T>,
    mut mount: impl FnMut() -> Result<T>,
) -> Result<Vec<(T, T)>> {
    native()?;
    mount()?;
    (0..pairs).map(|_| Ok((native()?, mount()?))).collect()
}

/// The same for any number of sides. Gives the samples of each.
pub fn take_turns<T>(pairs: usize, sides: &mut [Side<'_, T>]) -> Result<Vec<Vec<T>>> {
    for side in sides.iter_mut() {
        side()?;
    }
    let mut samples: Vec<Vec<T>> = sides.iter().map(|_| Vec::new()).collect();
    for _ in 0..pairs {
        for (side, samples) in sides.iter_mut().zip(&mut samples) {
            samples.push(side()?);
        }
    }
    Ok(samples)
}

/// Takes a sample of one side.
pub type Side<'a, T> = Box<dyn FnMut() -> Result<T> + 'a>;

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_middle_of_an_even_number_lies_between_two() {
        assert_eq!(Spread::of(&[4.0, 1.0, 3.0, 2.0]), Spread { median: 2.5, min: 1.0, max: 4.0 });
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]).median, 2.0);
    }

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((percentile(&values, 0.5), percentile(&values, 0.99)), (50.0, 99.0));
        assert_eq!((percentile(&[7.0], 0.0), percentile(&[7.0], 1.0)), (7.0, 7.0));
    }

    #[test]
    fn any_number_of_sides_take_turns() {
        let order = RefCell::new(0);
        let side = || -> Side<'_, i32> {
            Box::new(|| {
                *order.borrow_mut() += 1;
                Ok(*order.borrow())
            })
        };
        assert_eq!(take_turns(2, &mut [side(), side(), side()]).unwrap(), [[4, 7], [5, 8], [6, 9]]);
    }

    #[test]
    fn sides_take_turns() {
        let order = RefCell::new(String::new());
        let side = |name| {
            order.borrow_mut().push(name);
            Ok(order.borrow().len())
        };
        let pairs = interleave(2, || side('a'), || side('b')).unwrap();
        assert_eq!((order.borrow().as_str(), pairs), ("ababab", vec![(3, 4), (5, 6)]));
    }
}
