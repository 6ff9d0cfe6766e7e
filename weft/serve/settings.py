"""What a server is told when it starts."""

from __future__ import annotations

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Settings:
    """Addresses, limits and habits of a server.

    keys: API keys, of which a request must show one; none: everyone may ask · rate: requests a minute of each key, or of
    each address where there are no keys; 0: any number · characters: most of one request · texts: most of one request ·
    body: most bytes of a request · queue: texts that may wait for the model · timeout: seconds a request may take, and
    `arrive` its body to arrive · window: seconds in which requests are gathered into a batch · batch_tokens: source tokens of
    a batch; 0: every text alone · cache: translations remembered · beam: the widest beam a request may ask for · origins:
    pages of other sites that may ask (CORS) · proxies: addresses whose word on the client's address is believed · log_text:
    whether texts are written to the log · threads: of the model on a CPU; 0: as torch has it · grace: seconds that running
    requests are given at the end.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    keys: frozenset[str] = frozenset()
    rate: int = 0
    characters: int = 10_000
    texts: int = 256
    body: int = 1 << 20
    queue: int = 2_000
    timeout: float = 60.0
    arrive: float = 10.0
    window: float = 0.004
    batch_tokens: int = 4096
    cache: int = 10_000
    beam: int = 16
    origins: tuple[str, ...] = ()
    proxies: str = ""
    log_text: bool = False
    threads: int = 0
    grace: float = 60.0

    @property
    def local(self) -> bool:
        """Whether only this machine is served."""
        return self.host in LOOPBACK
