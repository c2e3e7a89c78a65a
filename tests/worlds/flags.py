"""Server arguments as a start of the server prints them: the usual ones, and how they look on a command line."""

from __future__ import annotations

from collections.abc import Mapping

#: In the order of the server's own listing; a selection of about a quarter of it.
USUAL: dict[str, object] = {
    "model_path": "/models/target",
    "tokenizer_path": "/models/target",
    "tokenizer_mode": "auto",
    "tokenizer_worker_num": 1,
    "skip_tokenizer_init": False,
    "load_format": "auto",
    "trust_remote_code": False,
    "context_length": 65536,
    "is_embedding": False,
    "revision": None,
    "dtype": "auto",
    "quantization": None,
    "kv_cache_dtype": "auto",
    "mem_fraction_static": 0.85,
    "max_running_requests": 16,
    "max_queued_requests": None,
    "max_total_tokens": 400000,
    "chunked_prefill_size": 4096,
    "max_prefill_tokens": 16384,
    "schedule_policy": "fcfs",
    "retraction_policy": "length",
    "schedule_conservativeness": 1.0,
    "page_size": 1,
    "radix_eviction_policy": "lru",
    "disable_radix_cache": False,
    "disable_overlap_schedule": True,
    "num_continuous_decode_steps": 1,
    "enable_mixed_chunk": False,
    "nnodes": 1,
    "node_rank": 0,
    "tp_size": 8,
    "pp_size": 1,
    "dp_size": 1,
    "enable_dp_attention": False,
    "device": "cuda",
    "random_seed": 11,
    "watchdog_timeout": 300,
    "host": "127.0.0.1",
    "port": 30000,
    "api_key": None,
    "served_model_name": "target",
    "chat_template": None,
    "enable_cache_report": False,
    "reasoning_parser": None,
    "tool_call_parser": None,
    "sampling_defaults": "model",
    "stream_interval": 1,
    "log_level": "info",
    "log_requests": False,
    "log_requests_level": 1,
    "enable_metrics": True,
    "decode_log_interval": 40,
    "enable_request_time_stats_logging": False,
    "export_metrics_to_file": True,
    "export_metrics_to_file_dir": "/var/lib/sglang/reqmetrics",
    "attention_backend": "triton",
    "decode_attention_backend": None,
    "prefill_attention_backend": None,
    "sampling_backend": "flashinfer",
    "grammar_backend": "xgrammar",
    "cuda_graph_max_bs": 32,
    "disable_cuda_graph": False,
    "triton_attention_num_kv_splits": 8,
    "disable_custom_all_reduce": False,
    "enable_torch_compile": False,
    "speculative_algorithm": "STANDALONE",
    "speculative_draft_model_path": "/models/draft-v1",
    "speculative_draft_model_revision": "main",
    "speculative_num_steps": 4,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 5,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
    "speculative_attention_mode": "prefill",
    "speculative_draft_attention_backend": None,
    "speculative_draft_window_size": None,
    "speculative_adaptive": False,
    "ep_size": 1,
    "moe_runner_backend": "auto",
    "disable_shared_experts_fusion": False,
    "enable_hierarchical_cache": False,
    "enable_lora": None,
    "cpu_offload_gb": 0,
    "disaggregation_mode": "null",
    "enable_deterministic_inference": False,
}

#: What a server with per-step tree lines adds.
TREE: dict[str, object] = {
    "speculative_algorithm": "DDTREE",
    "speculative_eagle_topk": 2,
    "speculative_num_draft_tokens": 33,
    "speculative_ddtree_budget": 32,
    "speculative_ddtree_debug_metrics": True,
}

#: What a server without speculation has in these places.
PLAIN: dict[str, object] = {
    "speculative_algorithm": None,
    "speculative_draft_model_path": None,
    "speculative_draft_model_revision": None,
    "speculative_num_steps": None,
    "speculative_eagle_topk": None,
    "speculative_num_draft_tokens": None,
}


def server_args(changed: Mapping[str, object]) -> dict[str, object]:
    """Return the whole listing with some arguments changed."""
    return {**USUAL, **changed}


def command_line(changed: Mapping[str, object]) -> str:
    """Return the command that starts a server with these arguments."""
    words = ["/opt/sglang/bin/python3 -m sglang.launch_server --model-path /models/target --tp-size 8 --page-size 1"]
    for name, value in changed.items():
        option = "--" + name.replace("_", "-")
        if value is True:
            words.append(option)
        elif value is not None and value is not False:
            words.append(f"{option} {value}")
    return " ".join(words)
