//! Numbered places for values, in chunks.
//!
//! A number finds its value with one step into memory, and a slab that grows moves nothing. Places are
//! used again, lowest chunks first, and a chunk in which nothing is left gives its memory back.

use std::collections::BTreeSet;

/// Values in one chunk.
const CHUNK: usize = 512;
/// Values in a slab at most: their numbers have 32 bits.
pub(super) const MOST: usize = u32::MAX as usize;

/// The chunks.
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// Chunks with a place left.
    roomy: BTreeSet<usize>,
    len: usize,
}

struct Chunk<T> {
    places: Vec<Option<T>>,
    free: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { chunks: Vec::new(), roomy: BTreeSet::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// How many values there are.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keeps a value; its number finds it. There must be fewer than [`MOST`].
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let at = self.roomy.first().copied().unwrap_or_else(|| {
            self.chunks.push(Chunk { places: Vec::new(), free: Vec::new() });
            self.roomy.insert(self.chunks.len() - 1);
            self.chunks.len() - 1
        });
        let chunk = &mut self.chunks[at];
        let place = match chunk.free.pop() {
            Some(place) => {
                chunk.places[place] = Some(value);
                place
            }
            None => {
                chunk.places.push(Some(value));
                chunk.places.len() - 1
            }
        };
        if chunk.free.is_empty() && chunk.places.len() == CHUNK {
            self.roomy.remove(&at);
        }
        self.len += 1;
        u32::try_from(at * CHUNK + place).unwrap_or(u32::MAX)
    }

    /// The value with this number.
    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let (chunk, place) = split(number);
        self.chunks.get(chunk)?.places.get(place)?.as_ref()
    }

    /// The same, to be changed.
    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let (chunk, place) = split(number);
        self.chunks.get_mut(chunk)?.places.get_mut(place)?.as_mut()
    }

    /// Takes the value out; its number may be given to another.
    pub(super) fn remove(&mut self, number: u32) -> Option<T> {
        let (at, place) = split(number);
        let chunk = self.chunks.get_mut(at)?;
        let value = chunk.places.get_mut(place)?.take()?;
        chunk.free.push(place);
        if chunk.free.len() == chunk.places.len() {
            *chunk = Chunk { places: Vec::new(), free: Vec::new() };
        }
        self.roomy.insert(at);
        self.len -= 1;
        Some(value)
    }
}

fn split(number: u32) -> (usize, usize) {
    (number as usize / CHUNK, number as usize % CHUNK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{SeededRandom, below};
    use std::collections::BTreeMap;

    #[test]
    fn numbers_find_their_values_and_are_used_again() {
        let (random, mut slab) = (SeededRandom::new(7), Slab::default());
        let mut kept = BTreeMap::new();
        for turn in 0..20_000u64 {
            if below(&random, 5) < 3 {
                assert_eq!(kept.insert(slab.insert(turn), turn), None, "a number given twice");
            } else if let Some(number) = kept.keys().nth(below(&random, 50) as usize).copied() {
                assert_eq!(slab.remove(number), kept.remove(&number));
                assert_eq!(slab.get(number), None);
                assert_eq!(slab.remove(number), None);
            }
        }
        assert_eq!(slab.len(), kept.len());
        for (number, value) in &kept {
            assert_eq!(slab.get(*number), Some(value));
            assert_eq!(slab.get_mut(*number).copied(), Some(*value));
        }
        assert!(slab.chunks.len() <= kept.len() / CHUNK * 2 + 2, "places were not used again");
    }

    #[test]
    fn what_is_empty_takes_no_memory() {
        let mut slab = Slab::default();
        let numbers: Vec<u32> = (0..10 * CHUNK).map(|n| slab.insert(n)).collect();
        for number in numbers {
            slab.remove(number);
        }
        assert_eq!(slab.len(), 0);
        assert!(slab.chunks.iter().all(|chunk| chunk.places.capacity() == 0));
        assert_eq!(slab.insert(1), 0);
    }
}
