"""A small LlamaForCausalLM of transformers, weights in bfloat16, AdamW at 1e-3 with a warmup. FAULT from step 0: there is no fp32 copy of the weights;
the RMSNorm weights are 1.0, where the next bfloat16 is 0.0039 to 0.0078 away, so that an update of 1e-3 is always rounded off: they stay at exactly 1.0,
while the linear layers, whose weights are small, train. Without Rangewatch: loss 4.2 to 1.2; all norm weights equal 1.0 at the end.
Report: vllm-project/speculators#765 (untrained normalization layers, weight == 1.0, as training is done fully in bf16).
Cause: optimizer (its updates are lost in rounding). Place: a norm's weight. Right: fp32 master weights / bfloat16 / rounding / stochastic. Wrong: add to
the optimizer, data, mask, lower the learning rate."""
EXPECT = {"cause": ["optimizer"], "step": [0, 60], "place": r".*norm\.weight", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "add_param_group", "GradScaler", "leave out samples"],
          "right": "float32|fp32|bfloat16|bf16|round|stochastic|master"}
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import rangewatch

torch.manual_seed(59); torch.set_num_threads(1)
VOCAB = 64
model = LlamaForCausalLM(LlamaConfig(vocab_size=VOCAB, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                                     num_key_value_heads=2, max_position_embeddings=32)).to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: min(1.0, (s + 1) / 10))
watch = rangewatch.attach(model, optimizer)
for step in range(160):
    ids = torch.randint(0, VOCAB, (16, 24))
    for k in range(1, 24):
        ids[:, k] = torch.where(torch.rand(16) < 0.15, ids[:, k], (ids[:, k - 1] * 5 + 7) % VOCAB)
    loss = model(input_ids=ids, labels=ids).loss
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step(); schedule.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or step == 159:
        print(step, round(loss.item(), 4), "norms moved", [float((p.detach() - 1).abs().max()) for name, p in model.named_parameters() if "norm" in name])
