//! The Response object and the events that lead to it.

use serde_json::{Value, json};

use crate::server::{
    chat::{CallDelta, ChatStep, Delta, End, Finish},
    error::ApiError,
    events::Events,
    extract::Object,
    openai::{logprob_entries, random_id, unix_time, usage},
    reply::Writer,
    sse::Frame,
    state::{AppState, Backend},
};

/// One answer on its way. An item is closed before the next opens.
pub struct Answer {
    /// The Response but for what the answer brings.
    base: Object,
    backend: Backend,
    /// The items that are complete.
    output: Vec<Value>,
    open: Option<Item>,
    /// The number of the next event.
    sequence: u64,
}

/// An item that still grows; its index is the number of those before it.
struct Item {
    id: String,
    /// Thoughts, text or arguments.
    text: String,
    /// Of the text, when asked for.
    logprobs: Vec<Value>,
    kind: Kind,
}

#[derive(Clone, PartialEq)]
enum Kind {
    Reasoning,
    Message,
    /// The call's index in the answer, its id and the name of the function.
    Call(usize, String, String),
}

impl Answer {
    /// An answer with a fresh id; `echo` is what the reply repeats of the request.
    pub fn new(state: &AppState, echo: Object) -> Result<Self, ApiError> {
        let mut base = echo;
        let head = [
            ("id", json!(format!("resp_{}", random_id()))),
            ("object", json!("response")),
            ("created_at", json!(unix_time())),
            ("model", json!(&**state.model_id()?)),
        ];
        base.extend(head.map(|(name, value)| (name.to_owned(), value)));
        Ok(Self { base, backend: state.backend()?.clone(), output: Vec::new(), open: None, sequence: 0 })
    }

    fn frame(&mut self, event: &'static str, mut body: Value) -> Frame {
        body["type"] = json!(event);
        body["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Frame::named(event, &body)
    }

    /// The Response with the items that are complete.
    fn response(&self, status: &str, end: Option<&End>, error: Value) -> Value {
        let is_incomplete = status == "incomplete";
        let mut response = self.base.clone();
        let rest = [
            ("status", json!(status)),
            ("completed_at", if end.is_some() { json!(unix_time()) } else { Value::Null }),
            ("error", error),
            ("incomplete_details", if is_incomplete { json!({"reason": "max_output_tokens"}) } else { Value::Null }),
            ("output", json!(self.output)),
            ("usage", end.map_or(Value::Null, counts)),
        ];
        response.extend(rest.map(|(name, value)| (name.to_owned(), value)));
        Value::Object(response)
    }

    fn delta(&mut self, delta: Delta) -> Vec<Frame> {
        let mut frames = Vec::new();
        if !delta.reasoning.is_empty() {
            self.grow(Kind::Reasoning, &delta.reasoning, Vec::new(), &mut frames);
        }
        if !delta.content.is_empty() {
            let logprobs =
                logprob_entries(&self.backend, &delta.logprobs).into_iter().map(|entry| json!(entry)).collect();
            self.grow(Kind::Message, &delta.content, logprobs, &mut frames);
        }
        for CallDelta { index, head, arguments } in delta.calls {
            let kind = match (head, self.open.as_ref().map(|item| &item.kind)) {
                (Some(head), _) => Kind::Call(index, head.id, head.name),
                (None, Some(open @ Kind::Call(same, ..))) if *same == index => open.clone(),
                // A call that is closed cannot grow; the parser completes one before it begins the next.
                _ => continue,
            };
            self.grow(kind, &arguments, Vec::new(), &mut frames);
        }
        frames
    }

    fn grow(&mut self, kind: Kind, text: &str, logprobs: Vec<Value>, frames: &mut Vec<Frame>) {
        if self.open.as_ref().is_none_or(|item| item.kind != kind) {
            self.close("completed", frames);
            self.open(kind.clone(), frames);
        }
        let Some(item) = &mut self.open else { return };
        item.text.push_str(text);
        if text.is_empty() {
            return;
        }
        let mut body = json!({"item_id": item.id, "output_index": self.output.len(), "delta": text});
        let event = match kind {
            Kind::Call(..) => "response.function_call_arguments.delta",
            Kind::Reasoning => "response.reasoning_text.delta",
            Kind::Message => {
                body["logprobs"] = json!(logprobs);
                "response.output_text.delta"
            }
        };
        if !matches!(kind, Kind::Call(..)) {
            body["content_index"] = json!(0);
        }
        item.logprobs.extend(logprobs);
        frames.push(self.frame(event, body));
    }

    fn open(&mut self, kind: Kind, frames: &mut Vec<Frame>) {
        let prefix = match kind {
            Kind::Reasoning => "rs_",
            Kind::Message => "msg_",
            Kind::Call(..) => "fc_",
        };
        let item = Item { id: format!("{prefix}{}", random_id()), text: String::new(), logprobs: Vec::new(), kind };
        let index = self.output.len();
        let added = json!({"output_index": index, "item": item.to_json("in_progress", Part::Missing)});
        frames.push(self.frame("response.output_item.added", added));
        if let Some(part) = item.part() {
            let added = json!({"item_id": item.id, "output_index": index, "content_index": 0, "part": part});
            frames.push(self.frame("response.content_part.added", added));
        }
        self.open = Some(item);
    }

    fn close(&mut self, status: &str, frames: &mut Vec<Frame>) {
        let Some(item) = self.open.take() else { return };
        let index = self.output.len();
        let mut done = json!({"item_id": item.id, "output_index": index});
        let event = match &item.kind {
            Kind::Reasoning => {
                done["text"] = json!(item.text);
                "response.reasoning_text.done"
            }
            Kind::Message => {
                done["text"] = json!(item.text);
                done["logprobs"] = json!(item.logprobs);
                "response.output_text.done"
            }
            Kind::Call(_, _, name) => {
                done["name"] = json!(name);
                done["arguments"] = json!(item.text);
                "response.function_call_arguments.done"
            }
        };
        let part = item.part();
        if part.is_some() {
            done["content_index"] = json!(0);
        }
        frames.push(self.frame(event, done));
        if let Some(part) = part {
            let done = json!({"item_id": item.id, "output_index": index, "content_index": 0, "part": part});
            frames.push(self.frame("response.content_part.done", done));
        }
        let item = item.to_json(status, Part::There);
        frames.push(self.frame("response.output_item.done", json!({"output_index": index, "item": item})));
        self.output.push(item);
    }

    fn lifecycle(&mut self, event: &'static str, response: Value) -> Frame {
        self.frame(event, json!({"response": response}))
    }
}

/// Whether an item shows its part.
#[derive(PartialEq)]
enum Part {
    Missing,
    There,
}

impl Item {
    fn part(&self) -> Option<Value> {
        match self.kind {
            Kind::Reasoning => Some(json!({"type": "reasoning_text", "text": self.text})),
            Kind::Message => {
                Some(json!({"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}))
            }
            Kind::Call(..) => None,
        }
    }

    fn to_json(&self, status: &str, part: Part) -> Value {
        let content = if part == Part::There { Vec::from_iter(self.part()) } else { Vec::new() };
        let Self { id, text, kind, .. } = self;
        match kind {
            Kind::Reasoning => {
                json!({"type": "reasoning", "id": id, "summary": [], "content": content, "status": status})
            }
            Kind::Message => {
                json!({"type": "message", "id": id, "role": "assistant", "content": content, "status": status})
            }
            Kind::Call(_, call_id, name) => {
                json!({"type": "function_call", "id": id, "call_id": call_id, "name": name, "arguments": text,
                       "status": status})
            }
        }
    }
}

impl Writer<ChatStep> for Answer {
    fn opening(&mut self) -> Vec<Frame> {
        let response = self.response("in_progress", None, Value::Null);
        vec![self.lifecycle("response.created", response.clone()), self.lifecycle("response.in_progress", response)]
    }

    fn step(&mut self, _: usize, step: ChatStep) -> Vec<Frame> {
        match step {
            ChatStep::Progress(_) => Vec::new(),
            ChatStep::Delta(delta) => self.delta(delta),
            ChatStep::Done(end) => self.end(&end),
        }
    }

    fn failed(&mut self, error: &ApiError) -> Frame {
        // One frame must do: the item that is cut is told of in the Response only.
        let sequence = self.sequence;
        self.close("incomplete", &mut Vec::new());
        self.sequence = sequence;
        let error = json!({"code": "server_error", "message": error.message()});
        let response = self.response("failed", None, error);
        self.lifecycle("response.failed", response)
    }
}

impl Events for Answer {
    fn end(&mut self, end: &End) -> Vec<Frame> {
        let (event, status) = match end.finish {
            Finish::Length => ("response.incomplete", "incomplete"),
            _ => ("response.completed", "completed"),
        };
        let mut frames = Vec::new();
        if self.output.is_empty() && self.open.is_none() {
            // Clients read `output[0]` unasked.
            self.open(Kind::Message, &mut frames);
        }
        self.close(status, &mut frames);
        let response = self.response(status, Some(end), Value::Null);
        frames.push(self.frame(event, json!({"response": response, "timings": usage(end).1})));
        frames
    }

    fn whole(self, end: &End) -> Value {
        let status = if end.finish == Finish::Length { "incomplete" } else { "completed" };
        let mut response = self.response(status, Some(end), Value::Null);
        response["timings"] = json!(usage(end).1);
        response
    }
}

fn counts(end: &End) -> Value {
    let (prompt, n_output) = (&end.report.prompt, end.report.n_generated);
    json!({
        "input_tokens": prompt.n_prompt,
        "input_tokens_details": {"cached_tokens": prompt.n_cached, "cache_write_tokens": 0},
        "output_tokens": n_output,
        "output_tokens_details": {"reasoning_tokens": end.n_reasoning},
        "total_tokens": prompt.n_prompt + n_output,
    })
}

#[cfg(test)]
mod tests;
