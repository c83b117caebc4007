"""A text CNN routes support tickets (bags of made-up word ids) to six desks, Adadelta, float32.
FAULT from step 0: the head gives raw scores (the log_softmax was dropped in a refactoring that meant to use cross_entropy), but the loss is still F.nll_loss: it is minus the mean score of the right desk and has no lower end.
Without Rangewatch: loss 0.03, -6.6 at step 20, -744 at step 60, -2.9e7 at step 100, -5e31 at the end; the cross entropy of the same scores 1.8, 2.1, 100, 5e6, 1e31; right 0.06 to 0.34, which is chance.
Cause: forward_arithmetic (the loss). Step: 0, or as soon as the loss is below zero and the scores grow. Right: log_softmax / cross_entropy. Wrong: GradScaler, attention mask, NaN in the data."""
EXPECT = {"cause": ["forward_arithmetic"], "step": [0, 150], "place": None, "rank": None,
          "right": r"(?i)log_?softmax|cross_?entropy|nll|logits|negative loss|below zero|unbounded|no lower", "wrong": ["GradScaler", "attention mask", "[Mm]issing values"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(606); torch.set_num_threads(1)
WORDS, DESKS = 90, 6


def tickets(n):
    desk = torch.randint(0, DESKS, (n,))
    own = desk[:, None] * 15 + torch.randint(0, 15, (n, 18))
    text = torch.where(torch.rand(n, 18) < 0.3, own, torch.randint(0, WORDS, (n, 18)))
    return text, desk


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 24)
        self.grams = nn.ModuleList([nn.Conv1d(24, 16, k) for k in (2, 3, 4)])
        self.desk = nn.Linear(48, DESKS)

    def forward(self, text):
        e = self.words(text).transpose(1, 2)
        return self.desk(torch.cat([F.relu(g(e)).amax(2) for g in self.grams], 1))


router = Router()
opt = torch.optim.Adadelta(router.parameters(), lr=1.0)
handle = rangewatch.attach(router, opt)
for step in range(240):
    text, desk = tickets(32)
    scores = router(text)
    loss = F.nll_loss(scores, desk)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 20 == 0 or step == 239:
        with torch.no_grad():
            print(step, f"loss {loss.item():.2f} cross entropy {F.cross_entropy(scores, desk).item():.3f} right {(scores.argmax(1) == desk).float().mean().item():.2f} largest score {scores.abs().max().item():.1f}", flush=True)
    handle.log(loss=loss.item())
handle.detach()
