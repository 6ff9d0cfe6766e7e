"""Settings of a server."""

from dataclasses import dataclass

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Settings:
    """Address, limits and options of a server.

    keys: accepted API keys with their names; empty: no key is needed · admin_keys: those that may reload the models ·
    key_file: file with further keys · rate: requests per minute and key, or per client address if there are no keys; 0:
    unlimited · characters, texts, body: maximum characters per text, texts and bytes per request · queue: maximum number of
    waiting sentences · cells: attention weights per response · timeout: seconds until a request must be answered · arrive:
    seconds until its body must have arrived · window: seconds to wait for further requests before decoding a batch · slice:
    seconds that a batch may take · batch_tokens: source tokens per batch; 0: no batching · cache: bytes of cached
    translations · beam: largest beam that a request may set · origins: allowed CORS origins · hosts: names under which a
    server on loopback answers · prefix: path before all others, as a proxy shows it · suggestions: file for suggested
    translations; empty: none are taken · proxies: proxy addresses whose X-Forwarded-For header is trusted · log_text: write
    texts to the log · workers: processes that serve on one port · engines: processes that run the models for them; 0: each
    does so itself · threads: CPU threads of the model; 0: torch's default · alone: CPU threads for a single request; 0: as
    many · lanes: searches that others join, side by side in this process, each with its threads · grace: seconds that running
    requests may take during shutdown.
    """

    host: str = "127.0.0.1"
    port: int = 5000
    keys: frozenset[str] = frozenset()
    admin_keys: frozenset[str] = frozenset()
    key_file: str = ""
    rate: int = 0
    characters: int = 10_000
    texts: int = 256
    body: int = 1 << 20
    queue: int = 2_000
    cells: int = 2_000_000
    timeout: float = 60.0
    arrive: float = 10.0
    window: float = 0.004
    slice: float = 0.2
    batch_tokens: int = 4096
    cache: int = 64 << 20
    beam: int = 16
    origins: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    prefix: str = ""
    suggestions: str = ""
    proxies: str = ""
    log_text: bool = False
    workers: int = 1
    engines: int = 0
    threads: int = 0
    alone: int = 0
    lanes: int = 1
    grace: float = 60.0

    @property
    def local(self) -> bool:
        """Whether the server listens only on this machine."""
        return self.host in LOOPBACK
