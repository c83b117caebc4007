"""A critic for a team of agents (as in multi-agent PPO): attention over the agents, those that are gone are masked by key_padding_mask. FAULT at step
150: in one state of the batch all agents are gone, the whole row is masked, and the softmax over nothing is NaN.
Without Rangewatch: loss 1.04 to 0.41 at step 149, NaN from step 150 on.
Report: pytorch/pytorch#41508 and #27968 (nn.MultiheadAttention with every key masked: NaN), pytorch/pytorch#103749.
Cause: mask. Step: 150. Right: mask / row / softmax. Wrong: learning rate, GradScaler, bfloat16."""
EXPECT = {"cause": ["mask"], "step": [150, 150], "place": r".*attention.*|", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16"],
          "right": "mask"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(818); torch.set_num_threads(1)
AGENTS, SEEN = 6, 10


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.see = nn.Sequential(nn.Linear(SEEN, 48), nn.ReLU())
        self.attention = nn.MultiheadAttention(48, 4, batch_first=True)
        self.value = nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, seen, gone):
        h = self.see(seen)
        h = h + self.attention(h, h, h, key_padding_mask=gone)[0]
        here = (~gone).float()[..., None]
        return self.value((h * here).sum(1) / here.sum(1).clamp_min(1)).squeeze(1)


model = Critic()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-5)
handle = rangewatch.attach(model, optimizer)
weights = torch.randn(SEEN)
for step in range(240):
    seen = torch.randn(48, AGENTS, SEEN)
    gone = torch.rand(48, AGENTS) < 0.3
    gone[:, 0] = False
    if step == 150:
        gone[17] = True  # the last agent fell at the same tick
    returns = ((seen @ weights).tanh() * (~gone)).sum(1) + 0.3 * torch.randn(48)
    loss = F.smooth_l1_loss(model(seen, gone), returns)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 10.0)
    optimizer.step()
    handle.log(loss=loss.item())
    if step % 20 == 0 or 148 < step < 153:
        print(step, loss.item(), flush=True)
handle.detach()
