"""A bidirectional LSTM that tags words, two sentences a step; words without a tag have the label -100, which the cross entropy leaves out. FAULT at step 140:
neither sentence of the pair has a tag at all: the mean over no word is 0 over 0, NaN.
Without Rangewatch: loss 1.94 to 0.0068 at step 139, NaN at step 140 (all gradients of the outputs are 0, so the weights live), 0.004 at step 141,
0.004 at the end.
Cause: data, or forward_arithmetic (a mean over nothing). Step: 140. Right: label / ignore_index / -100 / empty / batch. Wrong: learning rate, GradScaler."""
EXPECT = {"cause": ["data", "forward_arithmetic"], "step": [139, 141], "place": None, "rank": 0,
          "right": "(?i)label|ignore|-100|empty|target|batch|divi|mean", "wrong": ["[Ll]ower the learning rate", "GradScaler"]}
import torch
from torch import nn
import rangewatch

torch.manual_seed(2525); torch.set_num_threads(1)
WORDS, TAGS, LENGTH = 120, 7, 18
tag = torch.randint(0, TAGS, (WORDS,))


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, 32)
        self.read = nn.LSTM(32, 40, bidirectional=True, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.tags = nn.Linear(80, TAGS)

    def forward(self, x):
        return self.tags(self.drop(self.read(self.words(x))[0]))


net = Tagger()
criterion = nn.CrossEntropyLoss(ignore_index=-100)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, amsgrad=True)
handle = rangewatch.attach(net, optimizer)
for step in range(190):
    x = torch.randint(0, WORDS, (2, LENGTH))
    y = tag[x]
    y[torch.rand(2, LENGTH) < 0.3] = -100
    if step == 140:
        y[:] = -100
    loss = criterion(net(x).transpose(1, 2), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 138 < step < 143 or step == 189:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
