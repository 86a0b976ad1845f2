"""Settings of every sampler, alone and as clients combine them: what all engines are tried with."""

from collections.abc import Mapping

from backends.contract.samplers import Sampling

HOT = 6.0  # so that the bundled model, which is sure of itself, has something to choose from

SETTINGS: Mapping[str, Sampling] = {
    "temperature": Sampling(temperature=HOT),
    "a low temperature": Sampling(temperature=0.4),
    "`temperature_last`": Sampling(temperature=HOT, temperature_last=True, top_p=0.9, min_p=0.02),
    "dynamic temperature": Sampling(min_temp=3.0, max_temp=9.0, temp_exponent=1.5),
    "`smoothing_factor`": Sampling(temperature=HOT, smoothing_factor=0.05),
    "`smoothing_curve`": Sampling(temperature=HOT, smoothing_factor=0.05, smoothing_curve=2.0),
    "`top_k`": Sampling(temperature=HOT, top_k=8),
    "`top_p`": Sampling(temperature=HOT, top_p=0.8),
    "`top_p` of a half": Sampling(temperature=HOT, top_p=0.5),
    "`min_p`": Sampling(temperature=HOT, min_p=0.05),
    "`min_p` of 1": Sampling(temperature=HOT, min_p=1.0),
    "`top_a`": Sampling(temperature=HOT, top_a=0.2),
    "`tfs`": Sampling(temperature=HOT, tfs=0.95),
    "`tfs` of 0": Sampling(temperature=HOT, tfs=0.0),
    "`typical_p`": Sampling(temperature=HOT, typical_p=0.9),
    "`typical_p` of 0": Sampling(temperature=1.5, typical_p=0.0),  # when hot, all surprise alike
    "`skew`": Sampling(temperature=HOT, skew=0.7),
    "`top_n_sigma`": Sampling(temperature=HOT, top_n_sigma=1.5),
    "XTC": Sampling(temperature=HOT, xtc_probability=1.0, xtc_threshold=0.05),
    "`min_p` and XTC": Sampling(
        temperature=HOT, min_p=0.02, xtc_probability=1.0, xtc_threshold=0.1
    ),
    "`typical_p` and `top_p`": Sampling(temperature=HOT, typical_p=0.9, top_p=0.8),
    "all truncations": Sampling(
        temperature=HOT, top_k=40, tfs=0.98, typical_p=0.98, top_p=0.95, min_p=0.01, top_a=0.05
    ),
    "mirostat 1": Sampling(temperature=HOT, mirostat_mode=1, mirostat_tau=5.0),
    "mirostat 2": Sampling(temperature=HOT, mirostat_mode=2, mirostat_tau=5.0),
    "mirostat 2, a low target": Sampling(
        temperature=HOT, mirostat_mode=2, mirostat_tau=3.0, mirostat_eta=0.4
    ),
    "adaptive-p": Sampling(temperature=HOT, adaptive_target=0.4, min_p=0.01),
    "`adaptive_decay`": Sampling(
        temperature=HOT, adaptive_target=0.4, adaptive_decay=0.5, min_p=0.01
    ),
    "`repetition_penalty`": Sampling(temperature=HOT, repetition_penalty=1.3),
    "`repetition_decay`": Sampling(
        temperature=HOT, repetition_penalty=1.5, penalty_range=4, repetition_decay=6
    ),
    "`frequency_penalty`": Sampling(temperature=HOT, frequency_penalty=0.8),
    "`presence_penalty`": Sampling(temperature=HOT, presence_penalty=0.8),
    "`penalty_range`": Sampling(
        temperature=HOT, repetition_penalty=1.4, presence_penalty=0.5, penalty_range=5
    ),
    "DRY": Sampling(temperature=HOT, dry_multiplier=0.8, dry_allowed_length=1),
    "`dry_base`": Sampling(
        temperature=HOT,
        dry_multiplier=0.8,
        dry_allowed_length=1,
        dry_base=2.5,
        dry_sequence_breakers=("e", " "),
    ),
    "`dry_range`": Sampling(temperature=HOT, dry_multiplier=1.5, dry_allowed_length=1, dry_range=6),
    "`samplers`": Sampling(
        temperature=HOT, top_p=0.8, min_p=0.1, samplers=("min_p", "temperature", "top_p")
    ),
    "`logit_bias`": Sampling(temperature=HOT, logit_bias=((9, 2.0), (30, -3.0))),
    "`banned_tokens`": Sampling(temperature=HOT, banned_tokens=(9, 30, 31)),
    "`allowed_tokens`": Sampling(temperature=HOT, allowed_tokens=tuple(range(5, 40))),
    "`ban_eos`": Sampling(temperature=HOT, ban_eos=True),
}
