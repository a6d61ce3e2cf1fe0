"""What kind of observation a tool's text is, from the words that the published environments use."""

from __future__ import annotations

import re

_OURS = {"content", "not_found", "tool_error", "invalid", "next_part", "finish"}
_RENAMED = {"lookup_hit": "content", "lookup_end": "not_found", "empty": "not_found"}
_NOT_FOUND = re.compile(
    r"\s*(?:Could not find|No more results|No results?(?: found)?\W*\Z|None\s*\Z|\[\]\s*\Z"
    r"|The last page (?:Searched|Retrieved),? was not found)",
    re.IGNORECASE,
)
_INVALID = re.compile(r"\s*(?:Invalid action|Nothing happens\b|Invalid command|Unknown action)", re.IGNORECASE)
_ERROR = re.compile(r"\s*(?:Error\b|Traceback \(most recent call last\)|ERROR:|Exception:|\[error\])")


def observation_kind(text: str, given: object = None) -> str:
    """One of the kinds of `episode.Observation`: the file's own where it names one, else by the text's first words.

    A file's `content` is looked at again, since many files call every answer so.
    """
    named = _RENAMED.get(given, given) if isinstance(given, str) else None
    if named in _OURS and named != "content":
        return str(named)
    if _NOT_FOUND.match(text):
        return "not_found"
    if _INVALID.match(text):
        return "invalid"
    return "tool_error" if _ERROR.match(text) else "content"
