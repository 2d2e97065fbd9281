"""A model that follows a script, over HTTP on the loopback interface: the SDKs of models talk to it as to their own."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Json = dict[str, object]


class ScriptedModel:
    """Answers each request with the next turn of the script; `requests` has what was asked."""

    def __init__(self, turns: Sequence[Json]) -> None:
        self._turns = iter(turns)
        self.requests: list[Json] = []
        self.url = ""

    def answer(self, request: Json) -> Json:
        self.requests.append(request)
        return next(self._turns)


@contextmanager
def scripted_model(turns: Sequence[Json]) -> Iterator[ScriptedModel]:
    """Serve the script until the end of `with`."""
    model = ScriptedModel(turns)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps(model.answer(json.loads(body))).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        model.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield model
        finally:
            server.shutdown()
            thread.join()


def openai_response(*output: Json) -> Json:
    """One response of OpenAI's, with these items."""
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": list(output),
    }


def openai_text(text: str) -> Json:
    """The last item: what the model says."""
    content = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}


def openai_chat(message: Json) -> Json:
    """One chat completion."""
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": None, **message}}
    return {"id": "chat_1", "object": "chat.completion", "created": 0, "model": "scripted", "choices": [choice]}


def anthropic_message(*content: Json) -> Json:
    """One message of Anthropic's, with these blocks."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": list(content),
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
