"""A small transformer encoder learns to turn sequences round; Adam and the schedule of the transformer paper, written out. FAULT from step 0 on: the
factor width ** -0.5 is left out (and the warm-up is short), so that the rate goes up to 0.16, for Adam,
and what was learnt by step 10 is lost for good.
Without Rangewatch: loss 3.3 to 0.04 at step 10, 52 at step 40, 192 at step 80, 2.8 (log 16) at the end; rate 0.047, 0.154, 0.110, 0.067.
Report: OpenNMT/OpenNMT-py#869 (Adam with a rate of 2), jadore801120/attention-is-all-you-need-pytorch#101, tensorflow/tensor2tensor#280.
Cause: learning_rate. Step: in the warm-up. Right: learning rate / schedule / warm-up. Wrong: GradScaler, mask, bfloat16."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "attention mask", "bfloat16"],
          "right": "learning rate|lr\\b|schedul|step size|warm"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(801); torch.set_num_threads(1)
WORDS, LENGTH, WIDTH = 16, 10, 64


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 128, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        return self.out(self.body(self.words(x) + self.places(torch.arange(LENGTH))))


def noam(step, warmup=40):
    step += 1
    return min(step ** -0.5, step * warmup ** -1.5)  # times WIDTH ** -0.5, says the paper


model = Encoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, noam)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    x = torch.randint(0, WORDS, (48, LENGTH))
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flip(1).flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    handle.log(loss=loss.item(), lr=scheduler.get_last_lr()[0])
    if step % 20 == 0 or step < 12:
        print(step, loss.item(), "lr", scheduler.get_last_lr()[0], flush=True)
handle.detach()
