"""A character model over an invented language (six letters back, a two-layer perceptron with residual), all weights in float16, SGD with momentum.
FAULT at step 160: a hook rounds the residual layer's weights to 8 bits as a rehearsal for deployment and forgets to multiply with the scale again: `recall.two` then holds integers up to 127 instead of about 0.2.
Without Rangewatch: loss 1.7 at step 20, 0.79 at step 159, 215 at step 160, NaN from step 161 on (without the hook 0.89 at step 240).
Cause: weight (written from outside, some 500 times too large). Step: 160. Right: look at what wrote the weight / scale it back / restore a checkpoint. Wrong: lower the learning rate, GradScaler, data."""
EXPECT = {"cause": ["weight"], "step": [159, 162], "place": r"(.*\.)?recall(\.two)?(\.weight)?", "rank": None,
          "right": r"(?i)weight|parameter|checkpoint|restore|written", "wrong": ["[Ll]ower the learning rate", "GradScaler", "attention mask", "fill value"]}
import torch
from torch import nn
from torch.nn.functional import cross_entropy, relu
import rangewatch

torch.set_num_threads(1)
torch.manual_seed(3711)
LETTERS, CONTEXT, HIDDEN = 14, 6, 72
rule = torch.randint(0, LETTERS, (LETTERS, LETTERS))


def corpus(length=6000):
    text = [0, 1]
    dice = torch.rand(length)
    other = torch.randint(0, LETTERS, (length,))
    for i in range(length):
        text.append(int(rule[text[-2], text[-1]]) if dice[i] < 0.85 else int(other[i]))
    return torch.tensor(text)


class Recall(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(HIDDEN, HIDDEN)
        self.two = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x):
        return x + self.two(relu(self.one(x)))


class CharNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.letter = nn.Embedding(LETTERS, 12)
        self.join = nn.Linear(12 * CONTEXT, HIDDEN)
        self.recall = Recall()
        self.next = nn.Linear(HIDDEN, LETTERS)

    def forward(self, ctx):
        return self.next(self.recall(relu(self.join(self.letter(ctx).flatten(1)))))


def rehearse_int8(layer):
    with torch.no_grad():
        unit = layer.weight.abs().max() / 127
        layer.weight.copy_((layer.weight / unit).round())


text = corpus()
model = CharNet().half()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(260):
    if step == 160:
        rehearse_int8(model.recall.two)
    at = torch.randint(0, len(text) - CONTEXT - 1, (128,))
    ctx = text[at[:, None] + torch.arange(CONTEXT)]
    loss = cross_entropy(model(ctx).float(), text[at + CONTEXT])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 158 <= step <= 163:
        print(step, loss.item(), "largest in recall.two", model.recall.two.weight.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
