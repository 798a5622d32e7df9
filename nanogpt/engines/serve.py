"""Our models behind an address, in the form of OpenAI's completions. `nanogpt serve`

A server to try the audit on, right or with a bug of the gallery, and a load test of your engine's:
requests share the passes of chapter 24's server, and with `"stream": true` tokens come as they are
made. A decoder with a bug writes one text at a time, and sends it in one piece. It has what an
audit asks: seeds, n texts a request, token ids, log-probabilities, and `echo`. And it keeps what
chapter 31 promises: `stop`, `presence_penalty`, `frequency_penalty`, `logit_bias` (OpenAI's),
`repetition_penalty`, `min_p` and `structured_outputs` with a `regex` (vLLM's). A field that it does
not keep is refused by name; null is the default; a request without a seed has dice of its own. GET
/metrics counts guesses, under vLLM's names.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import secrets
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from nanogpt.data import CharTokenizer
from nanogpt.drafts import transformer
from nanogpt.drafts.lookup import PromptLookupDraft
from nanogpt.engines.adapters import plain_generate, target_of
from nanogpt.generate import Generation, check_request, check_whole
from nanogpt.measure.clock import frozen
from nanogpt.model import GPTLanguageModel
from nanogpt.proof.bugs import BUGS
from nanogpt.proof.gallery import mutant
from nanogpt.sampling import RandomSource, Sampling, Uniforms
from nanogpt.serving.constraints import Constraints
from nanogpt.serving.engine import Engine, News
from nanogpt.serving.grammar import Grammar
from nanogpt.serving.server import Limits, Server
from nanogpt.speculative import speculative_generate

MODEL = "nanogpt"
DRAFTS = ("none", "transformer", "lookup")
SEATS, CHUNK = 32, 64  # requests in a pass, and tokens of a prompt that it reads
Piece = tuple[int, News]  # which of a request's texts, and what is new of it

# What a request may ask

MOST_TEXTS, LONGEST_PATTERN = 128, 5000  # of a request; in letters, all that repeats written out
LONGEST_STOP = 200  # letters
NUMBERS: dict[str, tuple] = {  # field: default, least, most; whole where the least is
    "max_tokens": (16, 0, 4096),
    "n": (1, 1, MOST_TEXTS),
    "seed": (None, 0, 2**63 - 1),
    "logprobs": (None, 0, 2**31 - 1),  # no more than there are
    "temperature": (1.0, 0.0, 100.0),
    "top_k": (0, -1, 2**31 - 1),  # -1, 0: all
    "top_p": (1.0, 0.0, 1.0),
    "min_p": (0.0, 0.0, 1.0),
    "presence_penalty": (0.0, -100.0, 100.0),
    "frequency_penalty": (0.0, -100.0, 100.0),
    "repetition_penalty": (1.0, 0.01, 100.0),
}
FLAGS = ("echo", "stream", "return_token_ids", "return_tokens_as_token_ids")
EITHER = (True, False)  # there is no end token here, nor any other special one
NEUTRAL: dict[str, tuple] = {  # of fields that are not kept, the values that ask for nothing
    "suffix": ("",),
    "typical_p": (1,),
    "min_tokens": (0,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "include_stop_str_in_output": (False,),
    "response_format": ({"type": "text"},),
    "ignore_eos": EITHER,
    "add_special_tokens": EITHER,
    "skip_special_tokens": EITHER,
    "spaces_between_special_tokens": EITHER,
}


def fields_of(body: Any) -> SimpleNamespace:
    """A request's fields, each right by itself, and the default of each that is missing or null.

    Raises ValueError, by name, for what cannot be, and for what is not kept.
    """
    if not isinstance(body, dict):
        raise ValueError('the body is no JSON object; send one, such as {"prompt": "ROMEO:"}')
    given = {name: value for name, value in body.items() if value is not None}
    found: dict[str, Any] = {"prompts": prompts_of(given.pop("prompt", None))}
    for name, (default, least, most) in NUMBERS.items():
        found[name] = number(name, given.pop(name), least, most) if name in given else default
    for name in FLAGS:
        found[name] = given.pop(name, False)
        expect(isinstance(found[name], bool), name, found[name], "true or false")
    stop = given.pop("stop", [])
    found["stop"] = [stop] if isinstance(stop, str) else stop
    right = isinstance(stop, str | list) and all(isinstance(x, str) for x in stop)
    right = right and all(len(x) <= LONGEST_STOP for x in found["stop"])
    expect(right, "stop", stop, f"a text of up to {LONGEST_STOP} letters, or a list of those")
    options = given.pop("stream_options", {})
    form = json.dumps(options) if found["stream"] or options == {} else "for a stream"
    right = form in ("{}", '{"include_usage": false}', '{"include_usage": true}')
    expect(right, "stream_options", options, '{"include_usage": true}, with "stream": true')
    found["usage"] = "true" in form
    found["logit_bias"] = bias_of(given.pop("logit_bias", {}))
    found["regex"] = regex_of(given.pop("structured_outputs", None))
    expect(
        given.pop("model", MODEL) == MODEL, "model", body.get("model"), f'"{MODEL}", or left out'
    )
    expect(isinstance(given.pop("user", ""), str), "user", body.get("user"), "a text")
    texts = len(found["prompts"]) * found["n"]
    expect(texts <= MOST_TEXTS, "n times the prompts", texts, f"{MOST_TEXTS} or fewer")
    for name, value in given.items():
        nothing = NEUTRAL.get(name, (found["n"],) if name == "best_of" else ())
        asks = [x for x in nothing if x == value and isinstance(x, bool) == isinstance(value, bool)]
        expect(asks, name, value, "left out: this server does not keep it")
    return SimpleNamespace(**found)


def expect(right: Any, name: str, value: Any, what: str) -> None:
    """Raise ValueError unless a field's value is right: it must be `what`."""
    if not right:
        said = json.dumps(value)
        said = said if len(said) < 60 else said[:57] + "..."
        raise ValueError(f"{name} is {said}; it must be {what}")


def number(name: str, value: Any, least: float, most: float) -> float:
    """A field's number, whole if the least is. Raises ValueError if it is none, or out of range."""
    whole = isinstance(least, int)
    right = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
    what = f"a {'whole ' * whole}number from {least} to {most}"
    expect(right and least <= value <= most, name, value, what)
    return value


def prompts_of(prompt: Any) -> list[str | list[int]]:
    """The prompts: a text, or a list of tokens, or a list of those; ValueError for others."""

    def one(x: Any) -> bool:
        tokens = isinstance(x, list) and all(type(token) is int for token in x)
        return isinstance(x, str) or tokens

    prompts = prompt if isinstance(prompt, list) and not (prompt and one(prompt)) else [prompt]
    what = "a text, a list of tokens, or a list of either"
    expect(prompts and all(map(one, prompts)), "prompt", prompt, what)
    return prompts


def bias_of(given: Any) -> dict[int, float]:
    """{token: what is added to its logit}. Raises ValueError if that is not what is given."""
    right = isinstance(given, dict) and all(re.fullmatch("0|[1-9][0-9]{0,8}", x) for x in given)
    expect(right, "logit_bias", given, 'an object of tokens, such as {"5": -100}')
    return {int(x): number(f"logit_bias of {x}", by, -100.0, 100.0) for x, by in given.items()}


def regex_of(given: Any) -> str | None:
    """The pattern of structured_outputs. Raises ValueError if anything else is asked there."""
    if given is None:
        return None
    wanted = {x: by for x, by in given.items() if by is not None} if isinstance(given, dict) else {}
    regex = wanted.get("regex")
    right = isinstance(regex, str) and len(wanted) == 1
    expect(right, "structured_outputs", given, 'a regex alone, {"regex": "[a-z]+"}')
    letters = len(regex) * math.prod(max(1, int(n)) for n in re.findall(r"\{(\d+)\}", regex))
    expect(letters <= LONGEST_PATTERN, "regex", regex, f"of {LONGEST_PATTERN} letters, written out")
    return regex


@dataclass
class Completions:
    """Answers to requests for completions, by a decoder with speculative_generate's arguments.

    All texts share an engine, which is opened when it is first asked for; only a decoder with a bug
    writes them one at a time. drafted: guesses so far; reached: in how many rounds with guesses at
    least i were accepted.
    """

    decode: Callable[..., Generation]
    target: GPTLanguageModel
    draft: Any
    tokenizer: CharTokenizer
    K: int = 4
    lock: threading.Lock = field(default_factory=threading.Lock)  # drafts keep books of one text
    drafted: int = 0
    reached: Counter = field(default_factory=Counter)
    opened: Engine | None = None

    @property
    def ours(self) -> bool:
        """Whether the decoder is ours, without a bug."""
        return self.decode in (plain_generate, speculative_generate)

    @property
    def engine(self) -> Engine:
        """What writes, on a server that never drops a guess: a text is what it is alone."""
        with self.lock:
            if self.opened is None:
                draft = None if self.decode is plain_generate else self.draft
                limits = Limits(SEATS, SEATS * (CHUNK + self.K), CHUNK)
                self.opened = Engine(Server(self.target, draft, draft and self.K, limits))
            return self.opened

    def close(self) -> None:
        """End the engine, and whatever it is writing."""
        with self.lock:
            engine, self.opened = self.opened, None
        if engine is not None:
            engine.close()

    def asked(self, body: Any) -> SimpleNamespace:
        """The fields of a request's body, and what is made of them: rules, sampling, and its texts.

        texts: of each, the prompt's tokens and a seed. Raises ValueError if the request is wrong.
        """
        fields = fields_of(body)
        fields.rules, top_k, top_p = self.rules(fields), max(0, fields.top_k), fields.top_p
        fields.sampling = Sampling(fields.temperature, top_k or None, None if top_p == 1 else top_p)
        if fields.logprobs is not None and fields.max_tokens and fields.sampling != Sampling():
            raise ValueError("log-probabilities come at temperature 1 only; read again with echo")
        encode, V = self.tokenizer.encode, self.tokenizer.vocab_size
        fields.prompts = [encode(x) if isinstance(x, str) else x for x in fields.prompts]
        for prompt in fields.prompts:
            check_request(prompt, fields.max_tokens, V)
            if fields.echo and fields.logprobs is not None:
                window = self.target.config.block_size
                expect(len(prompt) <= window, "echo", True, f"false past the window of {window}")
        fields.rules.check(V)
        fields.texts = [  # as vLLM's: with a seed, that of a text is its number for its prompt
            (x, secrets.randbits(63) if fields.seed is None else fields.seed + i)
            for x in fields.prompts
            for i in range(fields.n)
        ]
        return fields

    def answer(
        self, fields: SimpleNamespace, gone: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """The response to what is `asked`. gone(): whether its client has left.

        Raises ConnectionError once the client has left, and what ends a text.
        """
        whole = [News([], []) for _ in fields.texts]
        for i, new in self.written(fields, gone):
            whole[i].tokens.extend(new.tokens)
            whole[i].logprobs.extend(new.logprobs)
            whole[i] = whole[i]._replace(end=new.end)
        choices = [self.choice(fields, i, news) for i, news in enumerate(whole)]
        made = sum(len(news.tokens) for news in whole)
        return said(choices) | {"usage": usage(fields, made)}

    def stream(
        self, fields: SimpleNamespace, gone: Callable[[], bool] = lambda: False
    ) -> Iterator[dict[str, Any]]:
        """The response in pieces, each as soon as it is there. Errors are those of `answer`."""
        begun, made = set(), 0
        for i, new in self.written(fields, gone):
            piece = said([self.choice(fields, i, new, i not in begun)])
            yield piece | ({"usage": None} if fields.usage else {})
            begun.add(i)
            made += len(new.tokens)
        if fields.usage:
            yield said([]) | {"usage": usage(fields, made)}

    def rules(self, fields: SimpleNamespace) -> Constraints:
        """The constraints of a request's fields.

        Raises ValueError for those that make no sense, and for any of a server with a bug, which
        has it in a decoder that takes none.
        """
        rules = Constraints(
            None if fields.regex is None else Grammar(fields.regex, self.tokenizer.chars),
            fields.logit_bias,
            fields.presence_penalty,
            fields.frequency_penalty,
            fields.repetition_penalty,
            fields.min_p,
            [self.tokenizer.encode(x) for x in fields.stop],
        )
        if not rules.free and not self.ours:
            raise ValueError("a server with a bug takes no constraints; leave them out")
        return replace(rules, logprobs=fields.logprobs is not None)

    def written(self, fields: SimpleNamespace, gone: Callable[[], bool]) -> Iterator[Piece]:
        """What is new of a request's texts, as it comes; whoever stops listening cancels them."""
        if fields.max_tokens and not self.ours:
            yield from self.one_by_one(fields, gone)
            return
        news: SimpleQueue = SimpleQueue()
        asked = [
            (prompt, fields.max_tokens, fields.sampling, RandomSource(seed))
            for prompt, seed in fields.texts
        ]
        engine, rules = self.engine, fields.rules
        listeners = [engine.submit(*one, news=news, constraints=rules) for one in asked]
        going = len(listeners)
        try:
            while going:
                still_there(gone)
                with contextlib.suppress(Empty):
                    listener, new = news.get(timeout=0.1)
                    if isinstance(new.end, Exception):
                        raise new.end
                    if new.end is not None:
                        going -= 1
                        self.count(new.end)
                    yield listeners.index(listener), new
        finally:
            for listener in listeners:
                listener.cancel()

    def one_by_one(self, fields: SimpleNamespace, gone: Callable[[], bool]) -> Iterator[Piece]:
        """The same by a decoder with a bug: each text whole, and alone."""
        for i, (prompt, seed) in enumerate(fields.texts):
            asked = self.target, self.draft, prompt, fields.max_tokens, self.K, fields.sampling
            with self.lock:
                still_there(gone)
                text = self.decode(*asked, dice(seed, gone))
            self.count(text)
            logs = torch.cat([r.target_probs[: len(r.emitted)] for r in text.rounds]).log()
            yield i, News(list(text.tokens), [*logs[: len(text.tokens)]], text)

    def choice(
        self, fields: SimpleNamespace, i: int, news: News, first: bool = True
    ) -> dict[str, Any]:
        """What is said of text i, or of a piece of it; the first one echoes the prompt."""
        prompt, names = fields.texts[i][0], self.tokenizer.chars
        echoed = prompt if fields.echo and first else []
        tokens, reason = [*echoed, *news.tokens], getattr(news.end, "finish_reason", "length")
        made: dict[str, Any] = {"index": i, "text": self.tokenizer.decode(tokens)}
        made["finish_reason"] = None if news.end is None else reason or "length"
        if fields.return_token_ids:
            made |= {"token_ids": tokens} | ({"prompt_token_ids": prompt} if first else {})
        if fields.logprobs is not None:
            logs = torch.stack(news.logprobs) if news.tokens else torch.empty(0, len(names))
            logs = torch.cat([self.read(prompt), logs]) if echoed else logs
            if fields.return_tokens_as_token_ids:
                names = [f"token_id:{i}" for i in range(len(names))]
            made["logprobs"] = logprobs(tokens, logs, min(fields.logprobs, len(names)), names)
        return made

    @torch.no_grad()
    def read(self, prompt: list[int]) -> Tensor:
        """What the target says of each token of the prompt but the first: log p (T - 1, V)."""
        return self.target(torch.tensor([prompt]))[0][0].log_softmax(-1)[:-1]

    def count(self, text: Generation) -> None:
        """Add a text's guesses."""
        with self.lock:
            for one in text.rounds:
                self.drafted += len(one.candidates)
                self.reached.update(range(one.n_accepted + 1) if one.candidates else ())

    def metrics(self) -> str:
        """The counters, in the text form of Prometheus."""
        per_place = [self.reached[i + 1] for i in range(self.K)]
        counts = {"drafts_total": self.reached[0], "draft_tokens_total": self.drafted}
        counts["accepted_tokens_total"] = sum(per_place)
        for i, n in enumerate(per_place):
            counts[f'accepted_tokens_per_pos_total{{position="{i}"}}'] = n
        return "".join(f"vllm:spec_decode_num_{name} {n}\n" for name, n in counts.items())


def said(choices: list[dict]) -> dict[str, Any]:
    """A response, or a piece of one."""
    return {"object": "text_completion", "model": MODEL, "choices": choices}


def usage(fields: SimpleNamespace, made: int) -> dict[str, int]:
    """How many tokens the prompts have, and how many were made."""
    read = sum(map(len, fields.prompts))
    return {"prompt_tokens": read, "completion_tokens": made, "total_tokens": read + made}


def still_there(gone: Callable[[], bool]) -> None:
    """Raise ConnectionError if the client has left."""
    if gone():
        raise ConnectionAbortedError("the client has left")


def dice(seed: int, gone: Callable[[], bool]) -> RandomSource:
    """The seed's random source; once the client has left, ConnectionError ends its text."""
    uniforms = Uniforms(seed)

    def random() -> float:
        still_there(gone)
        return uniforms.random()

    return RandomSource(seed, SimpleNamespace(random=random))


def logprobs(tokens: Sequence[int], logs: Tensor, top: int, names: Sequence[str]) -> dict[str, Any]:
    """Completions' `logprobs`: of each token, of the `top` likeliest there, and of itself."""
    skipped = len(tokens) - len(logs)  # the first token, after nothing
    said: dict[str, Any] = {"tokens": [names[token] for token in tokens]}
    said["token_logprobs"], said["top_logprobs"] = [None] * skipped, [None] * skipped
    best = logs.topk(top).indices.tolist()
    for token, row, likeliest in zip(tokens[skipped:], logs.tolist(), best, strict=True):
        said["token_logprobs"].append(row[token])
        said["top_logprobs"].append({names[i]: row[i] for i in dict.fromkeys([*likeliest, token])})
    return said


# HTTP


class HTTPServer(ThreadingHTTPServer):
    """A thread for each connection, and room for many that knock at once."""

    request_queue_size = 1024
    allow_reuse_address = os.name == "posix"  # on Windows, it lets two servers have one port

    def server_close(self):
        """Close the engine as well."""
        super().server_close()
        self.RequestHandlerClass.completions.close()

    def handle_error(self, request, client_address):
        """Say in one line what failed, unless the client has left."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            print(one_line(error), file=sys.stderr)


def one_line(error: BaseException | None) -> str:
    """What went wrong where nobody expected it."""
    return " ".join(f"the server failed: {type(error).__name__}: {error}".split())


def parsed(data: bytes) -> Any:
    """A body of JSON. Raises ValueError for any other."""
    try:
        return json.loads(data)
    except ValueError as error:
        raise ValueError(f"the body is no JSON: {error}") from None


def handler(completions: Completions) -> type[BaseHTTPRequestHandler]:
    """What http.server calls for each request."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        completions: Completions

        def do_GET(self):
            models = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
            if self.asks("/v1/models"):
                self.send(200, json.dumps(models))
            elif self.asks("/metrics"):
                self.send(200, completions.metrics(), "text/plain; version=0.0.4")
            else:
                self.refuse(404, f"nothing at {self.path}; GET /v1/models or /metrics")

        def do_POST(self):
            length = self.headers.get("Content-Length", "")
            if not re.fullmatch("[0-9]{1,7}", length):
                self.close_connection = True  # where the next request begins is not known
                return self.refuse(411, "send a Content-Length, of up to 9999999 bytes")
            data = self.rfile.read(int(length))
            if not self.asks("/v1/completions"):
                return self.refuse(404, f"nothing at {self.path}; POST a prompt to /v1/completions")
            fields = None
            try:
                fields = completions.asked(parsed(data))
                if fields.stream:
                    self.stream(completions.stream(fields, self.gone))
                else:
                    self.send(200, json.dumps(completions.answer(fields, self.gone)))
            except ConnectionError:
                raise
            except Exception as error:
                if fields is None and isinstance(error, RecursionError):
                    self.refuse(400, "the body, or its regex, is nested too deeply")
                elif fields is None and isinstance(error, ValueError):
                    self.refuse(400, str(error))
                else:
                    print(one_line(error), file=sys.stderr)
                    self.refuse(500, one_line(error))

        def asks(self, path: str) -> bool:
            return self.path.partition("?")[0].rstrip("/") == path

        def gone(self) -> bool:
            self.connection.setblocking(False)
            try:
                return not self.connection.recv(1, socket.MSG_PEEK)
            except BlockingIOError:  # it is there, and says nothing
                return False
            except OSError:
                return True
            finally:
                self.connection.setblocking(True)

        def stream(self, pieces: Iterator[dict]):
            first = next(pieces)  # what fails before it has a status of its own
            self.close_connection = True  # its end is the answer's
            self.head(200, "text/event-stream")
            with contextlib.closing(pieces):  # type: ignore[type-var]  # a generator
                try:
                    for piece in chain([first], pieces):
                        self.event(json.dumps(piece))
                    self.event("[DONE]")
                except ConnectionError:
                    raise
                except Exception as error:
                    print(one_line(error), file=sys.stderr)
                    self.event(json.dumps({"error": {"message": one_line(error)}}))

        def event(self, data: str):
            self.wfile.write(f"data: {data}\n\n".encode())

        def refuse(self, code: int, why: str):
            self.send(code, json.dumps({"error": {"message": " ".join(why.split())}}))

        def send(self, code: int, answer: str, kind: str = "application/json"):
            data = answer.encode()
            self.head(code, kind, len(data))
            self.wfile.write(data)

        def head(self, code: int, kind: str, length: int | None = None):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            if length is not None:
                self.send_header("Content-Length", str(length))
            if self.close_connection:
                self.send_header("Connection", "close")
            self.end_headers()

        def log_message(self, *_):
            pass

    Handler.completions = completions
    return Handler


def open_server(
    bug: int | None = None, draft: str = "transformer", K: int = 4, port: int = 0
) -> HTTPServer:
    """A server of our shipped models on this machine, not yet serving; port 0 takes a free one.

    Raises ValueError for a bug of no chain, a draft, K or port that cannot be, and OSError for a
    port that is taken.
    """
    check_whole(1, K=K)
    check_whole(0, port=port)
    if port > 65535:
        raise ValueError(f"port is {port}; it must be a whole number from 0 to 65535")
    if draft not in DRAFTS:
        raise ValueError(f"no draft {draft!r}; there are {', '.join(DRAFTS)}")
    chains = [bug.number for bug in BUGS if bug.decoder == "chain"]
    if bug is not None and bug not in chains:
        raise ValueError(f"no bug {bug} of a chain; there are {chains[0]} to {chains[-1]}")
    if bug is not None and draft == "none":
        raise ValueError("a bug needs a draft; leave out --draft none")
    target, tokenizer = target_of(bug)
    guesses = {
        "none": lambda: None,
        "transformer": transformer.load,
        "lookup": lambda: PromptLookupDraft(target.config.vocab_size),
    }[draft]()
    decode = plain_generate if draft == "none" else speculative_generate
    decode = decode if bug is None else mutant(BUGS[bug - 1])
    completions = Completions(decode, target, guesses, tokenizer, K)
    try:
        return HTTPServer(("127.0.0.1", port), handler(completions))
    except OSError as error:
        raise OSError(f"port {port}: {error.strerror}; choose another with --port") from error


def main(arguments: list[str] | None = None) -> int:
    """Serve until interrupted. Raises ValueError or OSError if that cannot be done."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="nanogpt serve", description=__doc__, formatter_class=how)
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    how = f"{', '.join(DRAFTS)}; default: %(default)s"
    parser.add_argument("--draft", default="transformer", help=how)
    parser.add_argument("--K", type=int, default=4, help="drafted tokens, default: %(default)s")
    parser.add_argument("--bug", type=int, metavar="N", help="with this bug of the gallery in it")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with open_server(given.bug, given.draft, given.K, given.port) as server, frozen():
        address = f"http://127.0.0.1:{server.server_port}/v1"
        print(f"nanogpt audit {address}   # in another terminal; Ctrl-C ends this one", flush=True)
        server.serve_forever()
    return 0
