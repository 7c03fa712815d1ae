"""A mixture of experts in a real vLLM server: it samples and takes versions as the trainer computes
them."""

from __future__ import annotations

import torch
import transformers as T

from agentgym_rl.weights import load_whole, write_version
from tests.kit.moe import FAMILIES, build

PROMPTS = [[5, 80, 33, 210, 7], [400, 12, 639, 3], list(range(10, 60))]


def worst_gap(server, model) -> float:
    """Largest |log-prob - that of transformers| over sampled tokens, in nats."""
    worst = 0.0
    for prompt in PROMPTS:
        choice = server.sample(prompt, max_tokens=24)
        reported = [token["logprob"] for token in choice["logprobs"]["content"]]
        ids = choice["token_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]]), use_cache=False).logits[0]
        scores = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
        found = scores.gather(1, torch.tensor(ids)[:, None])[:, 0]
        worst = max(worst, float((found - torch.tensor(reported)).abs().max()))
    return worst


def test_a_server_takes_versions_of_a_mixture_of_experts(start_vllm, tmp_path):
    # Narrower experts are padded on a CPU, and vLLM's reload does not know.
    config = T.Qwen3MoeConfig(**FAMILIES["qwen3_moe"].to_dict() | {"moe_intermediate_size": 32})
    build(config).save_pretrained(tmp_path / "moe")
    server = start_vllm(model_dir=tmp_path / "moe", max_model_len=256)
    try:
        model, names = load_whole(tmp_path / "moe", dtype=torch.float32)
        assert worst_gap(server, model) < 1e-4
        server.post("/init_weight_transfer_engine", {"init_info": {}})
        for version in (1, 2):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter += 0.05 * torch.randn_like(parameter)
            state = {name: p.detach() for name, p in model.named_parameters()}
            path = write_version(tmp_path, version, names.of(state))
            server.post("/start_weight_update")
            server.post("/update_weights", {"update_info": {"path": str(path)}})
            assert server.staging()["state"] == "ready", server.staging()
            server.post("/pause?mode=keep&clear_cache=true")
            server.post("/finish_weight_update", {"weight_version": f"0.{version}"})
            server.post("/resume")
            assert worst_gap(server, model) < 1e-4
    finally:
        server.stop()
