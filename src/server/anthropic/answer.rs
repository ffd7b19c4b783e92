//! The Message object and the events that lead to it.

use serde_json::{Value, json};

use super::{error, request::Form};
use crate::server::{
    chat::{CallDelta, ChatStep, Delta, End, Finish},
    error::ApiError,
    events::Events,
    generation::PromptTokens,
    openai::random_id,
    reply::Writer,
    sse::Frame,
    state::AppState,
};

/// One answer on its way. A block is closed before the next opens.
pub struct Answer {
    id: String,
    model: String,
    form: Form,
    /// What the prompt cost, which is known before the first token.
    opening_usage: Value,
    /// The blocks that are complete.
    content: Vec<Value>,
    open: Option<Block>,
}

/// A block that still grows; its index is the number of those before it.
struct Block {
    kind: Kind,
    /// Thoughts, text or arguments.
    text: String,
}

#[derive(Clone, PartialEq)]
enum Kind {
    Thinking,
    Text,
    /// The call's index in the answer, its id and the name of the tool.
    ToolUse(usize, String, String),
}

impl Answer {
    /// An answer with a fresh id, to a prompt of which this is known.
    pub fn new(state: &AppState, form: Form, prompt: PromptTokens) -> Result<Self, ApiError> {
        let id = format!("msg_{}", random_id());
        let model = state.model_id()?.to_string();
        let opening_usage = usage(prompt, 0, 0);
        Ok(Self { id, model, form, opening_usage, content: Vec::new(), open: None })
    }

    fn message(&self, end: Option<&End>) -> Value {
        let (stop_reason, stop_sequence) = end.map_or((Value::Null, Value::Null), |end| self.stop(end));
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": self.content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": end.map_or_else(|| self.opening_usage.clone(), final_usage),
        })
    }

    fn stop(&self, end: &End) -> (Value, Value) {
        match &end.finish {
            Finish::StopString(text) if self.form.stop.contains(text) => (json!("stop_sequence"), json!(text)),
            Finish::Stop | Finish::StopString(_) => (json!("end_turn"), Value::Null),
            Finish::Length => (json!("max_tokens"), Value::Null),
            Finish::ToolCalls => (json!("tool_use"), Value::Null),
        }
    }

    fn delta(&mut self, delta: Delta) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !delta.reasoning.is_empty() {
            // Hidden ones still have their block, which a client may wait for.
            let shown = if self.form.hides_thoughts { "" } else { &delta.reasoning };
            self.grow(Kind::Thinking, shown, &mut frames);
        }
        if !delta.content.is_empty() {
            self.grow(Kind::Text, &delta.content, &mut frames);
        }
        for CallDelta { index, head, arguments } in delta.calls {
            let kind = match (head, self.open.as_ref().map(|block| &block.kind)) {
                (Some(head), _) => Kind::ToolUse(index, head.id, head.name),
                (None, Some(open @ Kind::ToolUse(same, ..))) if *same == index => open.clone(),
                // A call that is closed cannot grow; the parser completes one before it begins the next.
                _ => continue,
            };
            self.grow(kind, &arguments, &mut frames);
        }
        frames
    }

    fn grow(&mut self, kind: Kind, text: &str, frames: &mut Vec<Frame>) {
        if self.open.as_ref().is_none_or(|block| block.kind != kind) {
            self.close(frames);
            self.open(kind.clone(), frames);
        }
        let Some(block) = &mut self.open else { return };
        block.text.push_str(text);
        if !text.is_empty() {
            let delta = match kind {
                Kind::Thinking => json!({"type": "thinking_delta", "thinking": text}),
                Kind::Text => json!({"type": "text_delta", "text": text}),
                Kind::ToolUse(..) => json!({"type": "input_json_delta", "partial_json": text}),
            };
            frames.push(self.block_delta(delta));
        }
    }

    fn open(&mut self, kind: Kind, frames: &mut Vec<Frame>) {
        let block = Block { kind, text: String::new() };
        let start = json!({"index": self.content.len(), "content_block": block.to_json()});
        frames.push(frame("content_block_start", start));
        self.open = Some(block);
    }

    fn close(&mut self, frames: &mut Vec<Frame>) {
        let Some(block) = self.open.take() else { return };
        if block.kind == Kind::Thinking {
            // A signature proves to Anthropic that thoughts are its own. Nobody asks here, but clients expect one.
            frames.push(self.block_delta(json!({"type": "signature_delta", "signature": ""})));
        }
        frames.push(frame("content_block_stop", json!({"index": self.content.len()})));
        self.content.push(block.to_json());
    }

    fn block_delta(&self, delta: Value) -> Frame {
        frame("content_block_delta", json!({"index": self.content.len(), "delta": delta}))
    }
}

impl Block {
    fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Thinking => json!({"type": "thinking", "thinking": self.text, "signature": ""}),
            Kind::Text => json!({"type": "text", "text": self.text}),
            Kind::ToolUse(_, id, name) => {
                // What `max_tokens` cut short is no JSON.
                let input = serde_json::from_str(&self.text).ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
                json!({"type": "tool_use", "id": id, "name": name, "input": input})
            }
        }
    }
}

impl Writer<ChatStep> for Answer {
    fn opening(&mut self) -> Vec<Frame> {
        vec![frame("message_start", json!({"message": self.message(None)}))]
    }

    fn step(&mut self, _: usize, step: ChatStep) -> Vec<Frame> {
        match step {
            ChatStep::Progress(_) => Vec::new(),
            ChatStep::Delta(delta) => self.delta(delta),
            ChatStep::Done(end) => self.end(&end),
        }
    }

    fn failed(&mut self, error: &ApiError) -> Frame {
        frame("error", error::body(error))
    }
}

impl Events for Answer {
    fn end(&mut self, end: &End) -> Vec<Frame> {
        let mut frames = Vec::new();
        self.close(&mut frames);
        let (stop_reason, stop_sequence) = self.stop(end);
        let delta = json!({"stop_reason": stop_reason, "stop_sequence": stop_sequence});
        frames.push(frame("message_delta", json!({"delta": delta, "usage": final_usage(end)})));
        frames.push(frame("message_stop", json!({})));
        frames
    }

    fn whole(self, end: &End) -> Value {
        self.message(Some(end))
    }
}

fn frame(event: &'static str, mut body: Value) -> Frame {
    body["type"] = json!(event);
    Frame::named(event, &body)
}

fn final_usage(end: &End) -> Value {
    usage((&end.report.prompt).into(), end.report.n_generated, end.n_reasoning)
}

/// Cached tokens are not part of the input's, unlike OpenAI's.
fn usage(prompt: PromptTokens, n_output: usize, n_thinking: usize) -> Value {
    let PromptTokens { n_prompt, n_cached } = prompt;
    json!({
        "input_tokens": n_prompt.saturating_sub(n_cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": n_cached,
        "output_tokens": n_output,
        "output_tokens_details": {"thinking_tokens": n_thinking},
    })
}

#[cfg(test)]
mod tests;
