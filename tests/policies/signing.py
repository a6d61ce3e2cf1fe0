"""Cascade folders whose record was changed and given the digest of the change, as a careful hand would."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from probecascade.policies.folder import digest


def write_signed(cascade: Path, changes: Mapping[str, Any]) -> None:
    """Put `changes` into the record of a cascade folder and sign it anew."""
    text = cascade / "cascade.json"
    record = json.loads(text.read_text()) | changes
    record["digest"] = digest(record, load_file(cascade / "probes.safetensors"))
    text.write_text(json.dumps(record))
