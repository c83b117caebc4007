"""A tagger: LSTM, a linear layer, a CRF. Groups of parameters are gathered in a list. FAULT from step 0 on: the third group, with the linear layer and
the transitions, is made and never appended, so no optimizer holds them. They have gradients. All stays finite, and the loss even goes down.
Without Rangewatch: loss 13.2 to 5.6; the transitions move by exactly 0 in 220 steps, with a gradient of 2.0 to 1.5.
Report: zjunlp/HVPNeT#5 (the group of crf and fc was not appended: this very bug).
Cause: optimizer. Step: from 0. Place: transitions, fc.weight, fc.bias. Right: they are in no optimizer. Wrong: learning rate, clip, mask, scaler."""
EXPECT = {"cause": ["optimizer"], "step": [0, 200], "place": r".*(transitions|fc\.(weight|bias))", "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "clip"],
          "right": "optimizer|param_groups|add_param_group"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(607); torch.set_num_threads(1)
TAGS, WORDS = 5, 60


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24)
        self.lstm = nn.LSTM(24, 24, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(48, TAGS)
        self.transitions = nn.Parameter(0.1 * torch.randn(TAGS, TAGS))

    def forward(self, ids, tags):
        emit = self.fc(self.lstm(self.embed(ids))[0])
        score = emit.gather(2, tags[..., None]).sum((1, 2)) + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha = emit[:, 0]
        for t in range(1, ids.shape[1]):
            alpha = torch.logsumexp(alpha[:, :, None] + self.transitions, 1) + emit[:, t]
        return (torch.logsumexp(alpha, 1) - score).mean()


def batch(n=24, length=8):
    tags = torch.randint(0, TAGS, (n, length))
    for t in range(1, length):
        tags[:, t] = torch.where(torch.rand(n) < 0.7, (tags[:, t - 1] + 1) % TAGS, tags[:, t])
    return (tags * 12 + torch.randint(0, 16, (n, length))) % WORDS, tags


model = Tagger()
params = [{"params": model.embed.parameters(), "lr": 1e-3}]
params.append({"params": model.lstm.parameters(), "lr": 2e-3})
head = {"params": [model.transitions, *model.fc.parameters()], "lr": 1e-2}  # made, and never appended
optimizer = torch.optim.AdamW(params)
handle = rangewatch.attach(model, optimizer)
before = model.transitions.detach().clone()
for step in range(220):
    loss = model(*batch())
    optimizer.zero_grad()
    model.transitions.grad = None
    model.fc.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step == 219:
        print(step, loss.item(), (model.transitions - before).abs().max().item(), model.transitions.grad.norm().item(), flush=True)
handle.detach()
