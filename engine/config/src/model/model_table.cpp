// The keys of a Hugging Face config.json with model_type gpt2. docs/config.md shows this table.
#include "sluice/config/key_table.hpp"

namespace sluice::config {

namespace {

constexpr Fate kYes = Fate::honoured;
constexpr Fate kInert = Fate::inert;
constexpr Fate kNo = Fate::refused;

constexpr KeyInfo kModelKeys[] = {
    {"model_type", "", "string", "required", kYes, "gpt2"},
    {"n_layer", "num_hidden_layers", "integer in [1, 10000]", "12", kYes, "transformer blocks"},
    {"n_head", "num_attention_heads", "integer in [1, 65536]", "12", kYes,
     "attention heads; divides n_embd"},
    {"n_embd", "hidden_size", "integer in [1, 1048576]", "768", kYes, "width of the embedding"},
    {"n_positions", "max_position_embeddings", "integer in [1, 16777216]", "1024", kYes,
     "longest sequence"},
    {"vocab_size", "", "integer in [1, 16777216]", "50257", kYes, "tokens"},
    {"n_inner", "", "integer in [1, 16777216]", "null", kYes,
     "width inside the feed-forward layer; absent: 4 n_embd"},
    {"layer_norm_epsilon", "", "number in (0, 1]", "1e-5", kYes, "added to the variance"},
    {"initializer_range", "", "number in (0, 100]", "0.02", kYes,
     "standard deviation of initial weights"},
    {"tie_word_embeddings", "", "bool", "true", kYes, "embedding and head are one parameter"},
    {"activation_function", "", "string", "\"gelu_new\"", kYes,
     "gelu_new, gelu_pytorch_tanh (the same), gelu or relu"},
    {"embd_pdrop", "", "number in [0, 1)", "0", kYes, "dropout after the embedding"},
    {"attn_pdrop", "", "number in [0, 1)", "0", kYes, "dropout of the attention weights"},
    {"resid_pdrop", "", "number in [0, 1)", "0", kYes, "dropout after attention and feed-forward"},
    {"n_ctx", "", "integer", "null", kYes, "an old name; must equal n_positions"},

    {"scale_attn_weights", "", "bool", "true", kNo, ""},
    {"scale_attn_by_inverse_layer_idx", "", "bool", "false", kNo, ""},
    {"reorder_and_upcast_attn", "", "bool", "false", kNo, ""},
    {"add_cross_attention", "", "bool", "false", kNo, ""},
    {"cross_attention_hidden_size", "", "integer", "null", kNo, ""},
    {"is_decoder", "", "bool", "false", kNo, ""},
    {"is_encoder_decoder", "", "bool", "false", kNo, ""},
    {"tie_encoder_decoder", "", "bool", "false", kNo, ""},
    {"pruned_heads", "", "object", "{}", kNo, ""},
    {"chunk_size_feed_forward", "", "integer", "0", kNo, ""},
    {"torchscript", "", "bool", "false", kNo, ""},
    {"use_bfloat16", "", "bool", "false", kNo, "set bf16 in the training configuration"},
    {"quantization_config", "", "object", "null", kNo, ""},

    {"architectures", "", "list", "null", kInert, "the Python class"},
    {"_name_or_path", "", "string", "null", kInert, "where the file came from"},
    {"_commit_hash", "", "string", "null", kInert, "where the file came from"},
    {"_attn_implementation_autoset", "", "bool", "false", kInert, "of the Python class"},
    {"attn_implementation", "", "string", "null", kInert, "of the Python class"},
    {"transformers_version", "", "string", "null", kInert, "what wrote the file"},
    {"torch_dtype", "", "string", "null", kInert, "the training configuration has the precision"},
    {"dtype", "", "string", "null", kInert, "the training configuration has the precision"},
    {"use_cache", "", "bool", "true", kInert, "of generation"},
    {"bos_token_id", "", "integer", "50256", kInert, "of the tokenizer"},
    {"eos_token_id", "", "integer or list", "50256", kInert, "of the tokenizer"},
    {"pad_token_id", "", "integer", "null", kInert, "of the tokenizer"},
    {"sep_token_id", "", "integer", "null", kInert, "of the tokenizer"},
    {"decoder_start_token_id", "", "integer", "null", kInert, "of generation"},
    {"tokenizer_class", "", "string", "null", kInert, "of the tokenizer"},
    {"prefix", "", "string", "null", kInert, "of generation"},
    {"keys_to_ignore_at_inference", "", "list", "null", kInert, "of the Python class"},
    {"gradient_checkpointing", "", "bool", "false", kInert,
     "\"sluice\": {\"activations\"} says which units are recomputed"},
    {"return_dict", "", "bool", "true", kInert, "of the Python class"},
    {"output_attentions", "", "bool", "false", kInert, "of the Python class"},
    {"output_hidden_states", "", "bool", "false", kInert, "of the Python class"},
    {"n_special", "", "integer", "0", kInert, "of the first GPT"},
    {"predict_special_tokens", "", "bool", "true", kInert, "of the first GPT"},
    {"output_past", "", "bool", "true", kInert, "of generation"},
    {"output_scores", "", "bool", "false", kInert, "of generation"},
    {"return_dict_in_generate", "", "bool", "false", kInert, "of generation"},
    {"summary_type", "", "string", "\"cls_index\"", kInert, "of the double-heads model"},
    {"summary_use_proj", "", "bool", "true", kInert, "of the double-heads model"},
    {"summary_activation", "", "string", "null", kInert, "of the double-heads model"},
    {"summary_proj_to_labels", "", "bool", "true", kInert, "of the double-heads model"},
    {"summary_first_dropout", "", "number", "0.1", kInert, "of the double-heads model"},
    {"task_specific_params", "", "object", "null", kInert, "of generation"},
    {"finetuning_task", "", "string", "null", kInert, "of classification"},
    {"problem_type", "", "string", "null", kInert, "of classification"},
    {"num_labels", "", "integer", "2", kInert, "of classification"},
    {"id2label", "", "object", "null", kInert, "of classification"},
    {"label2id", "", "object", "null", kInert, "of classification"},
    {"max_length", "", "integer", "20", kInert, "of generation"},
    {"min_length", "", "integer", "0", kInert, "of generation"},
    {"do_sample", "", "bool", "false", kInert, "of generation"},
    {"early_stopping", "", "bool", "false", kInert, "of generation"},
    {"num_beams", "", "integer", "1", kInert, "of generation"},
    {"num_beam_groups", "", "integer", "1", kInert, "of generation"},
    {"diversity_penalty", "", "number", "0.0", kInert, "of generation"},
    {"temperature", "", "number", "1.0", kInert, "of generation"},
    {"top_k", "", "integer", "50", kInert, "of generation"},
    {"top_p", "", "number", "1.0", kInert, "of generation"},
    {"typical_p", "", "number", "1.0", kInert, "of generation"},
    {"repetition_penalty", "", "number", "1.0", kInert, "of generation"},
    {"length_penalty", "", "number", "1.0", kInert, "of generation"},
    {"no_repeat_ngram_size", "", "integer", "0", kInert, "of generation"},
    {"encoder_no_repeat_ngram_size", "", "integer", "0", kInert, "of generation"},
    {"bad_words_ids", "", "list", "null", kInert, "of generation"},
    {"begin_suppress_tokens", "", "list", "null", kInert, "of generation"},
    {"suppress_tokens", "", "list", "null", kInert, "of generation"},
    {"exponential_decay_length_penalty", "", "list", "null", kInert, "of generation"},
    {"forced_bos_token_id", "", "integer", "null", kInert, "of generation"},
    {"forced_eos_token_id", "", "integer", "null", kInert, "of generation"},
    {"num_return_sequences", "", "integer", "1", kInert, "of generation"},
    {"remove_invalid_values", "", "bool", "false", kInert, "of generation"},
    {"tf_legacy_loss", "", "bool", "false", kInert, "of TensorFlow"},
};

}  // namespace

std::span<const KeyInfo> model_key_table() {
  return kModelKeys;
}

}  // namespace sluice::config
