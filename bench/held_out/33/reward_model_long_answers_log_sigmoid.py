"""A reward model (Bradley-Terry): the reward of an answer is the sum of its words' rewards, the loss -log(sigmoid(chosen - rejected)), written out. Adam.
FAULT: `torch.log(torch.sigmoid(d))`: from step 130 on the answers have 3000 words and not 8 (and other people label them, who disagree more); where a pair is ranked wrongly by more than 104 the sigmoid is exactly 0, its log -inf, and the
backward 0 * inf = NaN.
Without Rangewatch: loss 0.86 to 0.15 at step 129; inf at step 130, NaN from step 131 on.
Cause: forward_arithmetic. Step: 130. Right: logsigmoid / softplus / log of 0. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [129, 134], "place": None, "rank": None,
          "right": "(?i)logsigmoid|softplus|log|sigmoid|with_logits", "wrong": ["GradScaler", "attention mask", "[Ww]arm-?up"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(335); torch.set_num_threads(1)
WORDS = 60
polite = torch.randn(WORDS)


class Reward(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 24)
        self.body = nn.Sequential(nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, answer):
        return self.body(self.words(answer)).squeeze(-1).sum(1)


def pairs(n, length, disagree):
    a, b = torch.randint(0, WORDS, (2, n, length))
    ta, tb = polite[a].mean(1), polite[b].mean(1)
    swap = (ta < tb) ^ (torch.rand(n) < disagree)
    return torch.where(swap[:, None], b, a), torch.where(swap[:, None], a, b)


def preference_loss(chosen, rejected):
    return -torch.log(torch.sigmoid(chosen - rejected)).mean()


net = Reward()
optimizer = torch.optim.Adam(net.parameters(), lr=5e-3)
handle = rangewatch.attach(net, optimizer)
for step in range(170):
    good, bad = pairs(48, 8, 0.02) if step < 130 else pairs(24, 3000, 0.25)
    chosen, rejected = net(good), net(bad)
    loss = preference_loss(chosen, rejected)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 127 < step < 134:
        print(step, loss.item(), "smallest difference", (chosen - rejected).min().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
