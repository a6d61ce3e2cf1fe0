"""probecascade: probes on a local model's hidden states that abort doomed agent episodes."""

from __future__ import annotations

__version__ = "0.1.0"
