"""Make an untrained model of twelve words, which trains in seconds on a CPU: `python tiny_model.py FOLDER`."""

import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = ["the", "sky", "grass", "sea", "is", "are", "blue", "green", "grey", "and", "deep", "wide"]

vocabulary = {word: number for number, word in enumerate([*WORDS, "<unknown>", "<end>", "<pad>"])}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unknown>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=words, unk_token="<unknown>", eos_token="<end>", pad_token="<pad>", padding_side="left"
)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(vocabulary),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=1,
    num_attention_heads=2,
    max_position_embeddings=64,
    bos_token_id=None,
    eos_token_id=tokenizer.eos_token_id,
    pad_token_id=tokenizer.pad_token_id,
)
LlamaForCausalLM(config).save_pretrained(sys.argv[1])
tokenizer.save_pretrained(sys.argv[1])
print(f"{sys.argv[1]}: a model that knows {len(WORDS)} words")
