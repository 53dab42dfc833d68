"""One HTTP exchange at a time: JSON out, JSON in, refusals raised."""
import http.client
import json
import os
import socket
import urllib.parse

from .errors import RequestError, Unreachable, error_of


class Transport:
    """The server's address and the headers of every call. Each call has a connection of its own, so any number of
    threads may share one transport."""

    def __init__(self, url=None, token=None, timeout_s=600.0):
        self.url = url or os.environ.get("CAIRN_URL") or "http://127.0.0.1:8000"
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RequestError("BAD_URL", f"{self.url!r} is no URL of a server; http://HOST:PORT is")
        self._connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._address, self._prefix, self._timeout_s = parts.netloc.rpartition("@")[2], parts.path.rstrip("/"), timeout_s
        self._token = token if token is not None else os.environ.get("CAIRN_TOKEN", "")
        if not all("!" <= c <= "~" for c in self._token):
            raise RequestError("BAD_TOKEN", "the token holds a character that no token has")

    def call(self, method, path, body=None, attachment=None, lease=None):
        """The JSON of the answer. Raises a CairnError for status 400 and more, Unreachable when none came."""
        headers = {"Content-Type": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        if attachment:
            headers["X-miLLM-Attachment"] = attachment
        if lease:
            headers["X-miLLM-Lease"] = lease
        status, text = self._exchange(method, path, None if body is None else json.dumps(body), headers)
        try:
            answer = json.loads(text) if text else None
        except ValueError:
            answer = None
        if status >= 400:
            raise error_of(status, answer)
        if answer is None:
            raise Unreachable("NOT_JSON", f"{method} {path}: the answer is not JSON; is {self.url} a Cairn server?", status)
        return answer

    def _exchange(self, method, path, text, headers):
        link = self._connection(self._address, timeout=self._timeout_s)
        try:
            link.request(method, self._prefix + path, text, headers)
            reply = link.getresponse()
            return reply.status, reply.read()
        except (OSError, socket.timeout, http.client.HTTPException) as e:
            raise Unreachable("UNREACHABLE", f"{method} {self.url}{path}: {e or type(e).__name__}") from e
        finally:
            link.close()
