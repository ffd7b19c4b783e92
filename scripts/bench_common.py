"""What the bench scripts share: servers, one open connection, two sides in turn, a table in Markdown."""

import argparse
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEAD = "| what | onebit | beside it | ratio (median of pairs) | range |\n|---|---|---|---|---|"


def count(text):
    """A flag's value of 1 or more."""
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def arguments(doc, runs, peer=True):
    """A parser with the flags that all of them have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if peer:
        parser.add_argument("--peer", type=pathlib.Path, required=True, help="folder with llama-bench and llama-server")
    parser.add_argument("--model", required=True)
    parser.add_argument("--onebit", type=pathlib.Path, default=ROOT / "target/release/onebit")
    parser.add_argument("--runs", type=count, default=runs)
    parser.add_argument("--threads", type=count, default=os.cpu_count())
    return parser


def has_flag(onebit, flag):
    """Whether this build's `onebit serve` has a flag."""
    text = subprocess.run([onebit, "serve", "--help"], check=True, capture_output=True, text=True).stdout
    return re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", text) is not None


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


class Server:
    """A running server, ended by `stop` or the end of a `with`. `ready` is the seconds from its start to a healthy answer."""

    def __init__(self, command, port, env=None):
        self.port = port
        command = [str(word) for word in [*command, "--host", "127.0.0.1", "--port", port]]
        started = time.perf_counter()
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env)
        while not self.is_healthy():
            if self.process.poll() is not None:
                raise SystemExit(f"{' '.join(command)}: ended with {self.process.returncode}")
            if time.perf_counter() - started > 120:
                self.stop()
                raise SystemExit(f"{' '.join(command)}: did not become ready")
            time.sleep(0.002)
        self.ready = time.perf_counter() - started

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def is_healthy(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def memory(self):
        """Peak resident memory in MiB: all of it, and what of the present is not file pages (the weights are mapped)."""
        return self.status("VmHWM") / 1024, self.status("RssAnon") / 1024

    def status(self, field):
        """A number of KiB in /proc/<pid>/status."""
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", text).group(1))

    def stop(self):
        """Asks it to end; its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode


class Connection:
    """One connection to a server that stays open."""

    def __init__(self, port, timeout=600):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
        self.used = time.monotonic()

    def send(self, path, body):
        # Servers hang up on connections that were silent for some seconds; the next request then opens another.
        if time.monotonic() - self.used > 2:
            self.connection.close()
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = self.connection.getresponse()
        if reply.status != 200:
            raise SystemExit(f"{path}: {reply.status}: {reply.read(500)}")
        return reply

    def read(self, reply):
        """The rest of a reply. The silence begins with its end."""
        text = reply.read()
        self.used = time.monotonic()
        return text

    def seconds(self, path, body):
        """The time of a request, and its answer."""
        started = time.perf_counter()
        text = self.read(self.send(path, body))
        elapsed = time.perf_counter() - started
        return elapsed, json.loads(text)

    def events(self, path, body):
        """The JSON of a streamed answer's events, as they come."""
        reply = self.send(path, body | {"stream": True})
        for line in reply:
            if line.startswith(b"data: {"):
                yield json.loads(line[6:])
        # llama-server hangs up after a stream, so both sides begin anew.
        self.connection.close()

    def first_text(self, path, body):
        """Seconds to the first text of a streamed answer, the whole text, and the last event's timings."""
        started, first, text, timings = time.perf_counter(), None, "", {}
        for event in self.events(path, body):
            timings = event.get("timings", timings)
            for choice in event.get("choices", []):
                piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                if piece and first is None:
                    first = time.perf_counter() - started
                text += piece
        if first is None:
            raise SystemExit(f"{path}: an answer without text")
        return first, text, timings


def token_ids(n, seed=0):
    """A prompt of n token ids in the middle of any large vocabulary; another one for each seed."""
    return [1000 + (seed * 7919 + i * 37) % 5000 for i in range(n)]


def completion(prompt, n_tokens, **fields):
    """A greedy text completion of exactly n_tokens, for which nothing is reused."""
    return {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": False, **fields}


def in_turn(sides, second_first):
    """One pair. What goes first changes from pair to pair, so that a drift of the machine favours nobody."""
    results = [side() for side in (reversed(sides) if second_first else sides)]
    return tuple(reversed(results) if second_first else results)


def pairs(sides, runs):
    """The results of both sides, run by run, in turn."""
    results = [in_turn(sides, run % 2 == 1) for run in range(runs)]
    return [a for a, _ in results], [b for _, b in results]


def row(name, ours, theirs, unit, factor=1):
    """A line of the table: medians, and the ratio pair by pair."""
    ratios = [a / b for a, b in zip(ours, theirs)]
    print(f"| {name} | {factor * statistics.median(ours):.1f} {unit} | {factor * statistics.median(theirs):.1f} {unit} "
          f"| {statistics.median(ratios):.3f} | {min(ratios):.3f} to {max(ratios):.3f} |", flush=True)


class Replay:
    """A provider that answers one prompt from a file made before (scripts/replay-provider), in `folder`."""

    def __init__(self, args, prompt, folder, sleep=0.0):
        self.state = pathlib.Path(folder) / "replay.state"
        ids = pathlib.Path(folder) / "replay.ids"
        ids.write_text("".join(f"{token}\n" for token in prompt))
        prefill = args.onebit.resolve().parent / "onebit-prefill"
        command = [prefill, "--tokens", ids, "--out", self.state, "--model", args.model, "--threads", str(args.threads)]
        reply = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        self.env = os.environ | {
            "REPLAY_STATE": str(self.state), "REPLAY_REPLY": json.dumps(reply), "REPLAY_SLEEP": str(sleep)}
        self.flags = ["--device", "hybrid", "--prefill-provider", ROOT / "scripts/replay-provider"]
        if has_flag(args.onebit, "--prefill-mode"):
            self.flags += ["--prefill-mode", "resident"]


def require_handoff(timings):
    """A number of another path than the one to be measured would say nothing."""
    if timings.get("prefill_ms") is None or timings["prompt_n"] != 1:
        raise SystemExit(f"the prompt was not handed over: {timings}")
