"""Small chat templates of our own, each in the manner of a family of models, for a tokenizer of bytes."""

from __future__ import annotations

from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from probecascade.testing import ScriptedModel

_CALLS = (
    "{%- for call in m.tool_calls or [] %}{{ '\n' if m.content or not loop.first }}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{%- endfor %}"
)
_LISTED = "{{ '\n\nTools:' if tools }}{% for t in tools or [] %}{{ '\n' }}{{ t | tojson }}{% endfor %}"

CHATML = (
    "{%- if messages[0].role != 'system' %}[BOM]system\nYou are a helpful model.[EOM]\n{% endif %}"
    "{%- for m in messages %}"
    "[BOM]{{ m.role }}\n{{ m.content }}[EOM]\n"
    "{%- endfor %}{% if add_generation_prompt %}[BOM]assistant\n{% endif %}"
)

HERMES = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}[BOM]user\n<tool_response>\n{{ m.content }}\n</tool_response>[EOM]\n"
    "{%- else %}[BOM]{{ m.role }}\n{{ m.content }}"
    "{%- if m.role == 'system' %}" + _LISTED + "{% endif %}" + _CALLS + "[EOM]\n{% endif %}"
    "{%- endfor %}{% if add_generation_prompt %}[BOM]assistant\n{% endif %}"
)

THINKING = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}[BOM]user\n<tool_response>\n{{ m.content }}\n</tool_response>[EOM]\n"
    "{%- elif m.role == 'assistant' %}[BOM]assistant\n{{ m.content.split('</think>')[-1].lstrip('\n') }}"
    + _CALLS.replace("if m.content or", "if m.content.split('</think>')[-1].strip() or")
    + "[EOM]\n"
    "{%- else %}[BOM]{{ m.role }}\n{{ m.content }}"
    "{%- if m.role == 'system' %}" + _LISTED + "{% endif %}[EOM]\n{% endif %}"
    "{%- endfor %}{% if add_generation_prompt %}[BOM]assistant\n{% endif %}"
)

REASONER = THINKING.replace("%}[BOM]assistant\n{% endif %}", "%}[BOM]assistant\n<think>\n{% endif %}")

GEMMA = (
    "{%- for m in messages %}"
    "{%- if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "[BOM]{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}[EOM]\n"
    "{%- endfor %}{% if add_generation_prompt %}[BOM]model\n{% endif %}"
)

LLAMA = (
    "[BOM]system[EOH]\n\nToday: {{ strftime_now('%d %b %Y') }}\n"
    "{%- if messages[0].role == 'system' %}{{ '\n' }}{{ messages[0].content | trim }}" + _LISTED + "{% endif %}[EOM]"
    "{%- for m in messages if m.role != 'system' %}"
    "{%- if m.role == 'tool' %}[BOM]ipython[EOH]\n\n{{ m.content | tojson }}[EOM]"
    "{%- elif m.tool_calls %}[BOM]assistant[EOH]\n\n"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": '
    "{{ m.tool_calls[0].function.arguments | tojson }}}[EOM]"
    "{%- else %}[BOM]{{ m.role }}[EOH]\n\n{{ m.content | trim }}[EOM]{% endif %}"
    "{%- endfor %}{% if add_generation_prompt %}[BOM]assistant[EOH]\n\n{% endif %}"
)

MISTRAL = (
    "{%- set ns = namespace(turn=0, users=0) %}"
    "{%- set said = messages[1:] if messages[0].role == 'system' else messages %}"
    "{%- for m in said %}"
    "{%- if m.role == 'user' or (m.role == 'assistant' and not m.tool_calls) %}"
    "{%- if (m.role == 'user') != (ns.turn % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user and assistant') }}{% endif %}"
    "{%- set ns.turn = ns.turn + 1 %}{% endif %}"
    "{%- if m.role == 'user' %}{% set ns.users = ns.users + 1 %}{% endif %}{% endfor %}"
    "{%- set ns.turn = 0 %}"
    "{%- for m in said %}"
    "{%- if m.role == 'user' %}{% set ns.turn = ns.turn + 1 %}"
    "{%- if tools and ns.turn == ns.users %}[AVAILABLE]{{ tools | tojson }}[/AVAILABLE]{% endif %}[INST]"
    "{%- if messages[0].role == 'system' and ns.turn == ns.users %}{{ messages[0].content }}\n\n{% endif %}"
    "{{ m.content }}[/INST]"
    '{%- elif m.role == \'tool\' %}[RESULTS]{"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/RESULTS]'
    '{%- elif m.tool_calls %}[TOOL_CALLS] [{"name": "{{ m.tool_calls[0].function.name }}", "arguments": '
    '{{ m.tool_calls[0].function.arguments | tojson }}, "id": "{{ m.tool_calls[0].id }}"}][EOM]'
    "{%- else %} {{ m.content | trim }}[EOM]{% endif %}"
    "{%- endfor %}"
)

FOREIGN = HERMES.replace("<tool_call>", "[CALL]").replace("</tool_call>", "[/CALL]").replace('{"name"', '{"tool"')
"""Calls of a kind that is not read."""

FORMATS = {
    "chatml": CHATML,
    "hermes": HERMES,
    "thinking": THINKING,
    "reasoner": REASONER,
    "gemma": GEMMA,
    "llama": LLAMA,
    "mistral": MISTRAL,
}


def tokenizer(template: str) -> Any:
    """Of bytes, one token each, with a few marks."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, eos_token="[EOM]", additional_special_tokens=["[BOM]", "[TOOL_CALLS]"]
    )
    made.chat_template = template.replace("[EOM]\n", "[EOM]{{ '\n' }}")  # blanks before a tag are trimmed
    return made


class ChatModel(ScriptedModel):
    """A fake that goes on with its script after each of two cues, and whose message ends at [EOM]."""

    END = "[EOM]"

    def __init__(self, turns: list[str], cue: str, again: str, **options: Any) -> None:
        super().__init__(turns, cue=cue, **options)
        self.again = again

    def _coming(self, text: str, base: int) -> list[int]:
        return super()._coming(text.replace(self.again, self.cue), base)
