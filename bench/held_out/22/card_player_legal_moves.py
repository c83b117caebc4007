"""An actor and critic in one net play a card game against a fixed rule: of twelve cards in hand only some are legal in a trick. Illegal cards get a logit of
-inf. FAULT at step 118: in three states of the batch the hand is empty and no card at all is legal: the softmax of a row of -inf alone is NaN.
Without Rangewatch: the reward rises from 0.54 to 0.84 at step 117; the loss is NaN from step 118 on, the weights too, and the reward of the NaN policy is some 0.45.
Causes: mask. Right: the mask / rows that are masked whole / -inf / a finite number. Wrong: lower the rate, GradScaler, clip."""
EXPECT = {"cause": ["mask"], "step": [117, 119], "place": None, "rank": 0,
          "right": "(?i)mask|-inf|softmax", "wrong": ["GradScaler", "[Ll]ower the learning rate", "bfloat16"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2209); torch.set_num_threads(1)
worth = torch.rand(12, 4)


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Sequential(nn.Linear(16, 96), nn.ELU(), nn.Linear(96, 96), nn.ELU())
        self.card, self.value = nn.Linear(96, 12), nn.Linear(96, 1)

    def forward(self, lead, legal):
        h = self.table(torch.cat((lead, legal.float()), 1))
        return (self.card(h) + legal.float().log()).log_softmax(1), self.value(h)[:, 0]


model = Player()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(180):
    lead = torch.eye(4)[torch.randint(0, 4, (128,))]
    legal = torch.rand(128, 12) < 0.4
    legal[torch.arange(128), torch.randint(0, 12, (128,))] = True
    if step == 118:
        legal[[4, 50, 90]] = False
    logp, value = model(lead, legal)
    with torch.no_grad():
        card = (logp - torch.empty_like(logp).exponential_().log()).argmax(1)  # Gumbel: a sample
        reward = (worth[card] * lead).sum(1) + 0.1 * torch.randn(128)
    gain = reward - value
    p = logp[torch.arange(128), card]
    entropy = -(logp.exp() * logp.masked_fill(~legal, 0.0)).sum(1).mean()
    loss = -(p * gain.detach()).mean() + 0.5 * gain.square().mean() - 0.01 * entropy
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.log(loss=loss.item(), reward=reward.mean().item())
    if step % 20 == 0 or step in (117, 118, 119, 179):
        print(step, loss.item(), "reward", reward.mean().item(), flush=True)
handle.detach()
