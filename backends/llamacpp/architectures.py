"""What the graphs of llama.cpp's architectures take for granted: tables of their names, as GGUF has
them (llama-arch.cpp). No engine.

They follow `src/models/*.cpp`: each architecture was grown as a small file and changed, one trait
at a time, with tensors that fit (`tests/backends/gguf_grown.py`); a name is in a table where the
process then ended, or didn't. `tests/backends/llamacpp/test_attention.py` tries some of them.
"""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# What these tables were made with. Of others nothing is assumed but what a table says of them.
TRIED = _names(
    """
    apertus arcee arctic baichuan bailingmoe bailingmoe2 bert bitnet bloom chatglm codeshell
    cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr dream ernie4_5
    ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma gemma-embedding gemma2
    gemma3 gemma3n gemma4 glm4 glm4moe gpt-oss gpt2 gptneox granite granite_swa granitehybrid
    granitemoe grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2 jais
    jais2 jamba jina-bert-v3 lfm2 lfm2moe llada llada-moe llama llama-embed llama4 maincoder mamba
    mamba2 maple mellum mimo2 minicpm minicpm3 mistral3 mistral4 modern-bert mpt muse-glimmer
    nanbeige nemotron nemotron_h nemotron_h_moe neo-bert nomic-bert nomic-bert-moe olmo olmo2
    olmoe openelm orion pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 pockettts qwen
    qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe
    refact rnd1 seed_oss smollm3 spark2_5 stablelm starcoder starcoder2 step35 talkie xverse
    """
)
# Nothing of a head is turned by `rope.dimension_count`.
NEVER_TURNED = _names(
    """
    arwkv7 bert bloom deepseek2-ocr glm5-next gpt2 jais jamba jina-bert-v2 kimi-k3 kimi-linear
    mamba mamba2 mpt nemotron_h nemotron_h_moe refact rwkv6 rwkv6qwen2 rwkv7 starcoder t5
    t5encoder wavtokenizer-dec
    """
)
# Heads have a part of their own that is turned, and may have none.
TURNED_APART = frozenset({"deepseek2", "minicpm3", "mistral4"})
# All of a head is turned: the graph asserts `n_embd_head == n_rot`, or takes one for the other.
ALL_TURNED = _names(
    """
    apertus arcee arctic baichuan bailingmoe chameleon codeshell cogvlm cohere2moe dbrx deci
    deepseek dots1 dream ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon gpt-oss granite
    granite_swa granitemoe graniteswitch grok grovemoe hunyuan-dense hunyuan-moe hunyuan_vl hy_v3
    internlm2 jais2 llada llada-moe llama llama-embed llama4 maincoder mellum minicpm mistral3
    olmo olmo2 olmoe orion paddleocr pangu-embedded plamo pockettts qwen2 qwen2moe qwen2vl qwen3
    qwen3moe qwen3tts qwen3vl qwen3vlmoe rnd1 seed_oss smallthinker smollm3 starcoder2 talkie
    xverse
    """
)
# Layers turn that see a window alone.
TURNED_SLIDING = frozenset({"cohere2", "maple", "muse-glimmer"})
# Each layer turns what is said of layers like it; elsewhere all turn what is said of the first.
OWN_ROTATION = frozenset({"gemma4", "gemma4-assistant", "laguna", "maple", "spark2_5", "step35"})
# Positions have several dimensions, or may have.
IN_SECTIONS = frozenset(
    {"paddleocr", "qwen2vl", "qwen35", "qwen35moe", "qwen3tts", "qwen3vl", "qwen3vlmoe"}
)
MAY_BE_IN_SECTIONS = frozenset({"glm4", "glm4moe", "hunyuan_vl"})
# Heads share the width of the model evenly.
SHARED_EVENLY = _names(
    """
    arctic baichuan bert bitnet bloom chatglm codeshell cohere2 command-r dbrx deepseek
    deepseek2-ocr dream eurobert exaone4 falcon gpt2 gptneox grok internlm2 jais jamba
    jina-bert-v2 jina-bert-v3 lfm2 lfm2moe llada-moe modern-bert mpt nemotron neo-bert nomic-bert
    nomic-bert-moe olmo olmo2 olmoe orion phi2 phi3 phimoe plamo pockettts qwen qwen2 qwen2moe
    qwen2vl stablelm starcoder starcoder2 xverse
    """
)
# Keys and values may have different lengths.
UNLIKE = _names(
    """
    deepseek2 mamba mamba2 mimo2 minicpm3 mistral4 plamo2 plamo3 step35
    """
)
# Layers that see a window alone may have heads of another length.
OWN_LENGTHS = frozenset({"gemma-embedding", "gemma4"})
# Layers may differ in their heads for keys and values.
OWN_KV_HEADS = _names(
    """
    deci dream gemma4 granitehybrid jamba lfm2 lfm2moe llada llada-moe mamba mamba2 mimo2
    nemotron_h nemotron_h_moe openelm plamo2 plamo3 rnd1 spark2_5 step35
    """
)
# All layers have as many heads.
SAME_HEADS = _names(
    """
    bailingmoe2 granite granite_swa granitemoe minicpm minicpm3
    """
)
# Each head has keys and values of its own.
NEVER_SHARED = frozenset({"deepseek2-ocr", "minicpm3"})
# The file says how experts are chosen (`expert_gating_func`).
GATED = frozenset({"dots1", "minimax-m2", "smallthinker"})
# Layers may have no heads at all: they are recurrent, or pass on what they get.
HEADLESS = _names(
    """
    deci dream granitehybrid jamba lfm2 lfm2moe llada llada-moe mamba mamba2 nemotron_h
    nemotron_h_moe plamo2 rnd1
    """
)
# Keys and values are compressed to a vector that all heads share (MLA).
COMPRESSED = frozenset({"deepseek2", "mistral4"})
# There are experts.
WITH_EXPERTS = _names(
    """
    arctic bailingmoe2 glm4moe gpt-oss grovemoe lfm2moe llada-moe phimoe smallthinker
    """
)
# Layers may use different numbers of experts.
OWN_EXPERTS = frozenset({"nemotron_h", "nemotron_h_moe"})
# Not all layers may predict further tokens (`nextn_predict_layers`).
WITH_TRUNK = _names(
    """
    bailingmoe2 deepseek2 exaone4 glm4 glm4moe hrm_text hy_v3 mimo2 mistral4 step35
    """
)
# Files may have the layers alone that predict (drafts): the loader takes them.
MAY_BE_DRAFTS = _names(
    """
    bailingmoe3 cohere2moe deepseek2 deepseek32 deepseek4 glm-dsa glm4moe hy_v3 mimo2 nemotron_h
    nemotron_h_moe qwen35 qwen35moe qwen3next step35
    """
)
# Some layers attend, the others are recurrent: there is a memory of each kind.
HYBRID = _names(
    """
    granitehybrid jamba lfm2 lfm2moe nemotron_h nemotron_h_moe plamo2 qwen35 qwen35moe qwen3next
    """
)
# The graph wants what an encoder read, or another model's context: a draft.
NOT_ALONE = frozenset({"dflash", "eagle3", "gemma4-assistant", "t5"})
