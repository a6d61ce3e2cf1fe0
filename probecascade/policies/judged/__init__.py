"""Stopping rules on the evidence: judges of every observation, and what is done about their verdicts.

After arXiv 2610.06191: agents notice that a tool has stopped helping, yet go on calling it. Each condition of that
study is a policy here, `Judged(rule, judge)`; every verdict is kept in the notes of the episode (`evidence_log`).
"""

from probecascade.policies.judged.answering import Answering, Noted
from probecascade.policies.judged.conditions import BELIEFS, CONDITIONS, Judged, condition, rule_named
from probecascade.policies.judged.fitting import FittedEvidence, fit_evidence_probe
from probecascade.policies.judged.judges import (
    ASKED_WORD,
    EvidenceJudge,
    JudgedEpisode,
    Judgement,
    LexicalDetector,
    OddsJudge,
    ProbeJudge,
    RandomJudge,
    SideQuestionJudge,
    ThoughtReader,
)
from probecascade.policies.judged.log import EvidenceLog, best_cut, evidence_log, judges_of, useless_rate
from probecascade.policies.judged.rules import Decide, Enforced, Prompted, Rule, Seen, SwitchSource, Together
from probecascade.policies.judged.tuning import CALL_COST, TRIED, TunedRule, tune_k, utility
from probecascade.policies.judged.verdicts import (
    WORDS,
    Word,
    overlap,
    read_answer,
    read_probability,
    read_thought,
)

__all__ = [
    "ASKED_WORD",
    "BELIEFS",
    "CALL_COST",
    "CONDITIONS",
    "TRIED",
    "WORDS",
    "Answering",
    "Decide",
    "Enforced",
    "EvidenceJudge",
    "EvidenceLog",
    "FittedEvidence",
    "Judged",
    "JudgedEpisode",
    "Judgement",
    "LexicalDetector",
    "Noted",
    "OddsJudge",
    "ProbeJudge",
    "Prompted",
    "RandomJudge",
    "Rule",
    "Seen",
    "SideQuestionJudge",
    "SwitchSource",
    "ThoughtReader",
    "Together",
    "TunedRule",
    "Word",
    "best_cut",
    "condition",
    "evidence_log",
    "fit_evidence_probe",
    "judges_of",
    "overlap",
    "read_answer",
    "read_probability",
    "read_thought",
    "rule_named",
    "tune_k",
    "useless_rate",
    "utility",
]
