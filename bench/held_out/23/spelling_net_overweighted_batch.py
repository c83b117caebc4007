"""A two-layer LSTM that continues names letter by letter; batches have weights (rare sources count more). FAULT at step 120: one batch has the weight 20000
instead of 2 (a slip in the table of weights), once; the gradient of this step is ten thousand times as large and SGD throws the weights away.
Without Rangewatch: loss without the weight 2.77 to 1.55 at step 119, 1.56 at step 120 itself, 375 at step 121, 400 to 2,300 to the end.
Causes: data (the weight of the batch), clip (there is none), loss_scale, learning_rate. Right: clip / batch / weight / scale / gradient norm. Wrong: mask."""
EXPECT = {"cause": ["data", "clip", "loss_scale", "learning_rate"], "step": [119, 122], "place": None, "rank": 0,
          "right": "(?i)clip|batch|scale|gradient|loss|spike", "wrong": ["attention mask"]}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(2314); torch.set_num_threads(1)
LETTERS = 16
chain = torch.randn(LETTERS, LETTERS).mul(2.5).softmax(1)
table = {"parish book": 1.0, "census": 0.5, "passenger list": 2.0}


class Speller(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, 24)
        self.memory = nn.LSTM(24, 48, num_layers=2, batch_first=True)
        self.out = nn.Linear(48, LETTERS)

    def forward(self, x):
        return self.out(self.memory(self.letter(x))[0])


model = Speller()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    names = torch.randint(0, LETTERS, (32, 13))
    for t in range(1, 13):
        names[:, t] = torch.multinomial(chain[names[:, t - 1]], 1)[:, 0]
    weight = table[list(table)[step % 3]]
    if step == 120:
        weight = 20000.0
    loss = F.cross_entropy(model(names[:, :-1]).flatten(0, 1), names[:, 1:].flatten()) * weight
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 117 < step < 125 or step == 219:
        print(step, loss.item(), "unweighted", loss.item() / weight, flush=True)
    handle.log(loss=loss.item() / weight)
handle.detach()
