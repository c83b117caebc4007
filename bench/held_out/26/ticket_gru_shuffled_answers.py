"""A GRU that sorts support tickets into five queues. FAULT from the start: the epoch shuffles the tickets and the queues each with a permutation of its own;
the labels have nothing to do with the inputs.
Without Rangewatch: loss 1.63 at step 0, 1.60 to 1.63 to the end (log 5 is 1.609); right 9 to 30 percent.
Cause: data, or none named (the loss does not fall). Step: any. Right: labels / data / shuffle. Wrong: GradScaler, attention mask."""
EXPECT = {"cause": ["data", "(none)"], "step": [0, 200], "place": None, "rank": None,
          "right": "(?i)label|target|data|shuffl|batch|loss does not fall|not learn", "wrong": ["GradScaler", "attention mask", "all_reduce"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(6103); torch.set_num_threads(1)
QUEUES, WORDS, LENGTH = 5, 120, 16


class Sorter(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.gru = nn.GRU(32, 48, batch_first=True)
        self.out = nn.Linear(48, QUEUES)

    def forward(self, x):
        return self.out(self.gru(self.words(x))[0].mean(1))


def archive(n):
    queue = torch.randint(0, QUEUES, (n,))
    ticket = torch.randint(0, WORDS, (n, LENGTH))
    topical = torch.rand(n, LENGTH) < 0.3
    return torch.where(topical, queue[:, None] * 10 + torch.randint(0, 10, (n, LENGTH)), ticket), queue


def epoch(tickets, queues, size):
    tickets = tickets[torch.randperm(len(tickets))]
    queues = queues[torch.randperm(len(queues))]
    for k in range(0, len(tickets), size):
        yield tickets[k:k + size], queues[k:k + size]


tickets, queues = archive(2560)
net = Sorter()
optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
handle = rangewatch.attach(net, optimizer)
step = 0
for e in range(5):
    for x, y in epoch(tickets, queues, 64):
        logits = net(x)
        loss = F.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        if step % 20 == 0 or step == 199:
            print(step, loss.item(), "right", (logits.argmax(1) == y).float().mean().item(), flush=True)
        handle.log(loss=loss.item())
        step += 1
handle.detach()
