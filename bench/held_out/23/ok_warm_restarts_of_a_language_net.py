"""HEALTHY: a GRU language model with cosine annealing and warm restarts every 60 steps (SGDR) at a high peak rate: the loss rises for a few steps at each
restart and falls deeper after it. The norm of the gradients is clipped. Odd to a watcher: a rate near 0, then forty times as large at once, bumps in the loss.
Without Rangewatch: loss 3.40 to 1.64 at step 40, 1.54 at step 60, 2.00 at step 63 (restart), 1.54 at step 100, 1.46 at the end."""
EXPECT = {"healthy": True}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2344); torch.set_num_threads(1)
WORDS = 30
grammar = torch.randn(WORDS, WORDS).mul(3).softmax(1)


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.word = nn.Embedding(WORDS, 32)
        self.gru = nn.GRU(32, 64, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.next = nn.Linear(64, WORDS)

    def forward(self, x):
        return self.next(self.drop(self.gru(self.word(x))[0]))


model = Language()
optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=60, eta_min=0.05)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    text = torch.randint(0, WORDS, (32, 17))
    for t in range(1, 17):
        text[:, t] = torch.multinomial(grammar[text[:, t - 1]], 1)[:, 0]
    loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or 58 < step < 64 or step == 239:
        print(step, loss.item(), "rate", optimizer.param_groups[0]["lr"], flush=True)
    handle.log(loss=loss.item())
handle.detach()
