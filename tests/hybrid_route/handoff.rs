//! Handoffs that work: the answer is the one of a server that evaluates the prompt itself.

use crate::common::bench::{Bench, GOOD, expect_handoff};
use crate::common::request::Request;

const PROMPT: &str = "Once upon a time there was a byte.";

#[test]
fn the_answer_is_the_cpus_in_every_form() {
    let bench = Bench::new(GOOD);
    let server = bench.start();
    let requests = [
        Request::text(PROMPT),
        Request::text(PROMPT).streamed(),
        Request::chat(PROMPT),
        Request::chat(PROMPT).streamed(),
    ];
    let texts: Vec<_> = requests.iter().map(|request| expect_handoff(&server, request).text).collect();
    assert_eq!((&texts[0], &texts[2]), (&texts[1], &texts[3]));
    assert_ne!(texts[0], texts[2], "the template adds to the prompt");
    // Nothing of a request is left for the next one.
    for (request, text) in requests.iter().zip(texts) {
        assert_eq!(expect_handoff(&server, request).text, text);
    }
    server.stop();
}
