"""Silence while third parties load a model: our own progress bar is the only one on the screen."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_loading() -> Iterator[None]:
    """No progress bars, log lines or warnings from transformers, the hub client and gguf inside the block.

    Everything is put back as it was, after an error too. Errors are raised as ever.
    """
    from huggingface_hub import utils as hub
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    own_bars = logging.is_progress_bar_enabled()
    hub_bars_off = hub.are_progress_bars_disabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if not hub_bars_off:
        hub.disable_progress_bars()
    try:
        # The bar of the GGUF reader obeys no switch, so what it would write is swallowed.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if own_bars:
            logging.enable_progress_bar()
        if not hub_bars_off:
            hub.enable_progress_bars()
