//! Where the lanes of a divergent branch meet again: the immediate post-dominator of the branch.

/// The instruction that may come after another: the next one, or a branch's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Goes on.
    Next,
    /// Jumps.
    Jump(usize),
    /// Goes on or jumps, lane by lane.
    Fork(usize),
    /// Ends.
    End,
    /// Goes on or ends, lane by lane.
    MayEnd,
}

/// For each instruction, the nearest one that every path from it to the end goes through; `code.len()`, the end
/// itself, where there is none nearer.
///
/// The method is that of Cooper, Harvey and Kennedy ("A simple, fast dominance algorithm") on the reversed graph.
/// It runs over instructions rather than basic blocks: kernels have some thousands, and it is done once.
pub(crate) fn post_dominators(code: &[Flow]) -> Vec<usize> {
    let end = code.len();
    let (order, rank) = reverse_post_order(code);
    let mut nearest = vec![usize::MAX; end + 1];
    nearest[end] = end;
    let mut changed = true;
    while changed {
        changed = false;
        for &at in &order[1..] {
            let mut meet = usize::MAX;
            for next in successors(code, at) {
                if nearest[next] != usize::MAX {
                    meet = if meet == usize::MAX { next } else { common(&nearest, &rank, meet, next) };
                }
            }
            changed |= meet != nearest[at];
            nearest[at] = meet;
        }
    }
    nearest.truncate(end);
    // Instructions from which the end cannot be reached never meet again.
    nearest.iter().map(|&at| at.min(end)).collect()
}

fn common(nearest: &[usize], rank: &[usize], mut a: usize, mut b: usize) -> usize {
    while a != b {
        while rank[a] > rank[b] {
            a = nearest[a];
        }
        while rank[b] > rank[a] {
            b = nearest[b];
        }
    }
    a
}

/// The one or two instructions after `at`; past the last one lies the end.
pub(crate) fn successors(code: &[Flow], at: usize) -> impl Iterator<Item = usize> {
    let end = code.len();
    let (first, second) = match code[at] {
        Flow::Next => (at + 1, None),
        Flow::Jump(target) => (target, None),
        Flow::Fork(target) => (at + 1, Some(target)),
        Flow::End => (end, None),
        Flow::MayEnd => (at + 1, Some(end)),
    };
    std::iter::once(first).chain(second)
}

/// Instructions in reverse post-order of the reversed graph, from the end, and the rank of each in that order.
fn reverse_post_order(code: &[Flow]) -> (Vec<usize>, Vec<usize>) {
    let end = code.len();
    let mut predecessors = vec![Vec::new(); end + 1];
    for at in 0..end {
        for next in successors(code, at) {
            predecessors[next].push(at);
        }
    }
    let mut order = Vec::with_capacity(end + 1);
    let mut seen = vec![false; end + 1];
    seen[end] = true;
    let mut path = vec![(end, 0)];
    while let Some((at, child)) = path.last_mut() {
        if let Some(&before) = predecessors[*at].get(*child) {
            *child += 1;
            if !std::mem::replace(&mut seen[before], true) {
                path.push((before, 0));
            }
        } else {
            order.push(*at);
            path.pop();
        }
    }
    order.reverse();
    let mut rank = vec![usize::MAX; end + 1];
    for (i, &at) in order.iter().enumerate() {
        rank[at] = i;
    }
    (order, rank)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Flow::{End, Fork, Jump, MayEnd, Next};

    #[test]
    fn both_sides_of_a_condition_meet_behind_it() {
        // 0: if → 3; 1: then; 2: → 4; 3: else; 4: end
        assert_eq!(post_dominators(&[Fork(3), Next, Jump(4), Next, End])[0], 4);
    }

    #[test]
    fn a_loop_is_left_together() {
        // 0; 1: body; 2: back to 1; 3: end
        let meet = post_dominators(&[Next, Next, Fork(1), End]);
        assert_eq!((meet[0], meet[2]), (1, 3));
    }

    #[test]
    fn nested_branches_meet_at_their_own_ends() {
        // 0: if → 5; 1: if → 3; 2; 3; 4; 5: end
        let meet = post_dominators(&[Fork(5), Fork(3), Next, Next, Next, End]);
        assert_eq!((meet[0], meet[1]), (5, 3));
    }

    #[test]
    fn lanes_that_end_are_not_waited_for() {
        // 0: if → 2; 1: end; 2: end
        assert_eq!(post_dominators(&[Fork(2), End, End])[0], 3);
        assert_eq!(post_dominators(&[MayEnd, Next, End]), [3, 2, 3]);
    }

    #[test]
    fn a_loop_without_end_has_no_meeting_point() {
        assert_eq!(post_dominators(&[Fork(2), Jump(1), End]), [2, 3, 3]);
    }
}
