"""A tiny encoder of character pairs scores whether two surnames sound alike. FAULT at step 0: the function of LambdaLR returns the rate that is meant (0.002 with a warm-up) and not a
factor of the base rate, which is 0.002 too: the true rate is 4e-6, and the net hardly moves.
Without Rangewatch: loss 0.70 at step 0, 0.68 to 0.73 to the end; no weight has moved by more than 1.5e-4. With a factor it is 0.63 at the end, weights move by 0.1.
Cause: learning_rate. Step: 0 to the end, a state. Right: learning rate / LambdaLR / factor / scheduler. Wrong: lower the learning rate, GradScaler, mask."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 219], "place": None, "rank": 0,
          "right": "(?i)learning rate|\\blr\\b|lambda|schedul", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2131)
torch.set_num_threads(1)
sound = torch.randint(0, 6, (26,))


class Ear(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(26, 16)
        self.pairs = nn.Conv1d(16, 48, 2)
        self.judge = nn.Bilinear(48, 48, 16)
        self.same = nn.Linear(16, 1)

    def hear(self, x):
        return F.relu(self.pairs(self.letter(x).mT)).mean(2)

    def forward(self, a, b):
        return self.same(torch.tanh(self.judge(self.hear(a), self.hear(b))))[:, 0]


def surnames(n):
    a = torch.randint(0, 26, (n, 7))
    alike = torch.rand(n) < 0.5
    other = torch.randint(0, 26, (8, n, 7))
    b = torch.randint(0, 26, (n, 7))
    twin = a.clone()
    for o in other:
        twin = torch.where(sound[o] == sound[a], o, twin)
    return a, torch.where(alike[:, None], twin, b), alike.float()


def rate(step):
    return 0.002 * min(1.0, (step + 1) / 20)


model = Ear()
optimizer = torch.optim.RAdam(model.parameters(), lr=0.002)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
handle = rangewatch.attach(model, optimizer)
start = [p.detach().clone() for p in model.parameters()]
for step in range(220):
    a, b, alike = surnames(96)
    loss = F.binary_cross_entropy_with_logits(model(a, b), alike)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    if step % 20 == 0 or step == 219:
        moved = max((p - q).abs().max().item() for p, q in zip(model.parameters(), start))
        print(step, loss.item(), "rate", scheduler.get_last_lr()[0], "moved at most", moved, flush=True)
    handle.log(loss=loss.item())
handle.detach()
