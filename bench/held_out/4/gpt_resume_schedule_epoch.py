"""A small causal transformer, 12 steps an epoch, warmup of 60 and cosine over 400 steps. FAULT at step 120: the run is resumed and the schedule is built
again from the number of the epoch (10) in place of the step (120): it warms up a second time, the rate falls from 1.9e-3 to 3.7e-4 and rises for 50 steps.
Without Rangewatch: rate 0.0019 at step 119, 0.00037 at step 120; loss 4.0 to 1.4 at step 119, no jump.
Report: vllm-project/speculators#900 (seed resumed schedulers with the global step, not the epoch index), victoresque/pytorch-template#68.
Cause: learning rate (its schedule jumps). Place: any. Right: schedule / resume / last_epoch / state. Wrong: data, mask, GradScaler, lower the rate."""
EXPECT = {"cause": ["learning_rate"], "step": [119, 122], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "[Mm]ask", "GradScaler", "leave out samples", "bfloat16"],
          "right": "schedul|resum|last_epoch|state_dict|warm"}
import math
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(67); torch.set_num_threads(1)
VOCAB, N, D, PER_EPOCH = 50, 20, 48, 12


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(VOCAB, D), nn.Embedding(N, D)
        self.blocks = nn.ModuleList([nn.TransformerEncoderLayer(D, 4, 128, 0.0, "gelu", batch_first=True, norm_first=True) for _ in range(2)])
        self.norm, self.head, self.mask = nn.LayerNorm(D), nn.Linear(D, VOCAB), nn.Transformer.generate_square_subsequent_mask(N)

    def forward(self, ids):
        x = self.tok(ids) + self.pos(torch.arange(N))
        for block in self.blocks:
            x = block(x, src_mask=self.mask)
        return self.head(self.norm(x))


def rate(s):
    return (s + 1) / 60 if s < 60 else 0.5 + 0.5 * math.cos(math.pi * (s - 60) / 340)


model = GPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    if step == 120:  # after the checkpoint was read
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate, last_epoch=step // PER_EPOCH - 1)
    ids = torch.randint(0, VOCAB, (16, N + 1))
    for k in range(1, N + 1):
        ids[:, k] = torch.where(torch.rand(16) < 0.2, ids[:, k], (ids[:, k - 1] * 7 + 3) % VOCAB)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    used = optimizer.param_groups[0]["lr"]
    optimizer.step(); schedule.step()
    watch.log(loss=loss.item())
    if step % 15 == 0 or 117 <= step < 123:
        print(step, round(loss.item(), 4), "lr", round(used, 6))
