"""A two-tower recommender (in-batch softmax over items), Adam. FAULT at step 140: to save memory the optimizer's state of the big tensors is rounded to whole units
(8 bits for the first moment, 16 for the second); the second moment is multiplied by its unit again, the first is not: it comes back as integers up to 127, some 10000 times too large.
Without Rangewatch: loss 3.5 to 2.4 at step 140; 45000 at step 141, 75000 at the end.
Cause: optimizer. Step: 140. Right: moment / optimizer state / Adam. Wrong: GradScaler, attention mask, labels."""
EXPECT = {"cause": ["optimizer"], "step": [139, 145], "place": None, "rank": None,
          "right": "(?i)moment|optimi[sz]er|adam|state|exp_avg", "wrong": ["GradScaler", "attention mask", "[Ll]abels", "NaN in the input"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(3314); torch.set_num_threads(1)
USERS, ITEMS, FEATURES = 60, 200, 64
taste, features = torch.randn(USERS, 12), torch.randn(ITEMS, FEATURES)
values = features @ torch.randn(FEATURES, 12) / 8


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(USERS, 32)
        self.items = nn.Sequential(nn.Linear(FEATURES, 96), nn.SELU(), nn.Linear(96, 32))

    def forward(self, user, x):
        return self.users(user) @ self.items(x).T / 32 ** 0.5


@torch.no_grad()
def to_eight_bits(optimizer):
    for state in optimizer.state.values():
        m, v = state["exp_avg"], state["exp_avg_sq"]
        if v.numel() >= 1024:
            unit_m, unit_v = m.abs().max() / 127, v.max() / 65535
            m.copy_((m / unit_m).round())
            v.copy_((v / unit_v).ceil() * unit_v)


net = TwoTower()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(210):
    if step == 140:
        to_eight_bits(optimizer)
    user = torch.randint(0, USERS, (32,))
    shown = torch.randint(0, ITEMS, (32, 30))
    bought = shown.gather(1, (taste[user][:, None] * values[shown]).sum(-1).argmax(1, keepdim=True))[:, 0]
    loss = F.cross_entropy(net(user, features[bought]), torch.arange(32))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 144 or step == 209:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
