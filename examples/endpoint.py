"""A scripted model behind an OpenAI-compatible address, so that the examples need no network and no key.

It writes a question's last word in capitals and chats around it, unless asked for the word alone or "The answer is X."
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product

WORDS = ["".join(parts) for parts in product(("ba", "de", "fi", "mo", "nu", "ra"), repeat=3)]
QUESTIONS = [{"question": f"In capitals, please: {word}", "expected": word.upper()} for word in WORDS]


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    log_message = staticmethod(lambda *args: None)  # nothing is printed for a request

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        first, last = (asked["messages"][place]["content"] for place in (0, -1))
        word = last.split()[-1].upper()
        text = word if "only the word" in first.lower() or word.endswith("RA") else f"Of course! It is {word}."
        text = f"The answer is {last.split()[-1].strip('.')}." if "The answer is" in first else text
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": asked["model"], "choices": [choice]}
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def serve() -> str:
    """Starts it for as long as the program runs, and returns its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"
