//! What comes over the control socket: bodies of requests and answers.

use serde::Serialize;
use serde::de::DeserializeOwned;
use weightfs::control::{
    BudgetRequest, EvictRequest, InUseHint, Job, PinRequest, PrefetchRequest, PriorityHint, Problem, QueueHint, Status,
    Tensors, TraceStart, UnmountRequest, UpgradeRequest, VramHint,
};
use weightfs::pattern::Pattern;

/// What was understood means the same when it is sent on.
fn round<T: Serialize + DeserializeOwned>(bytes: &[u8]) {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else { return };
    // Numbers that JSON has no way to write are not sent on.
    let Ok(text) = serde_json::to_string(&value) else { return };
    let again: T = serde_json::from_str(&text).expect("just written");
    assert_eq!(serde_json::to_string(&again).expect("it was possible before"), text);
}

pub fn control(bytes: &[u8]) {
    round::<PinRequest>(bytes);
    round::<PrefetchRequest>(bytes);
    round::<EvictRequest>(bytes);
    round::<InUseHint>(bytes);
    round::<QueueHint>(bytes);
    round::<VramHint>(bytes);
    round::<PriorityHint>(bytes);
    round::<BudgetRequest>(bytes);
    round::<TraceStart>(bytes);
    round::<UnmountRequest>(bytes);
    round::<UpgradeRequest>(bytes);
    // What a client is sent.
    round::<Status>(bytes);
    round::<Tensors>(bytes);
    round::<Job>(bytes);
    round::<Problem>(bytes);
}

/// The first line is a pattern, the rest a name. Against the plainest implementation.
pub fn pattern(bytes: &[u8]) {
    let (text, name) = bytes.split_at(bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len()));
    let Ok(text) = str::from_utf8(text) else { return };
    let (pattern, name) = (Pattern::new(text), &name[..name.len().min(200)]);
    if text.len() <= 200 {
        assert_eq!(pattern.matches(name), matches(text.as_bytes(), name), "{text:?} and {name:?}");
    }
}

/// By the table of all beginnings of both.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let mut row = vec![false; name.len() + 1];
    row[0] = true;
    for byte in pattern {
        let mut next = vec![false; name.len() + 1];
        next[0] = *byte == b'*' && row[0];
        for at in 1..=name.len() {
            next[at] = match byte {
                b'*' => next[at - 1] || row[at],
                b'?' => row[at - 1],
                byte => row[at - 1] && *byte == name[at - 1],
            };
        }
        row = next;
    }
    row[name.len()]
}
