"""A prompt of four vectors and an adapter are trained on a frozen encoder of texts. FAULT from the start: their group has a rate of 300; the paper has 3e-2
and the file 3e2.
Without Rangewatch: loss 0.65 at step 0, 2.4 million at step 1, 229 at step 3, 10 to 190 to the end; the largest of the prompt is 300 after step 0, 2,841
at the end.
Cause: learning_rate (of one group). Step: 0. Place: prompt or adapter. Right: learning rate / group. Wrong: GradScaler, mask, NaN in the input."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 15], "place": ".*(prompt|adapter).*", "rank": 0,
          "wrong": ["GradScaler", "attention mask", "NaN in the input"],
          "right": "learning rate|rate|lr|group"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1521); torch.set_num_threads(1)
WORDS, T = 40, 12
mood = torch.randn(WORDS)


class Sentiment(nn.Module):
    """A frozen encoder; trained are a prompt of four vectors before the text and the head."""
    def __init__(self, width=32):
        super().__init__()
        self.word = nn.Embedding(WORDS, width)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True), 2)
        self.word.requires_grad_(False), self.encoder.requires_grad_(False)
        self.prompt = nn.Parameter(0.1 * torch.randn(4, width))
        self.adapter = nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width))
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        h = self.encoder(torch.cat((self.prompt.expand(len(x), -1, -1), self.word(x)), 1))
        return self.head((h + self.adapter(h)).mean(1))


def texts(n):
    x = torch.randint(0, WORDS, (n, T))
    return x, (mood[x].mean(1) > mood.mean()).long()


model = Sentiment()
optimizer = torch.optim.AdamW([{"params": [model.prompt, *model.adapter.parameters()], "lr": 300.0},  # 3e-2 in the paper, 3e2 in the file
                               {"params": model.head.parameters(), "lr": 3e-3}], weight_decay=0.0)
handle = rangewatch.attach(model, optimizer)
for step in range(200):
    x, y = texts(32)
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or step < 5 or step == 199:
        print(step, loss.item(), "largest in the prompt", model.prompt.abs().max().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
