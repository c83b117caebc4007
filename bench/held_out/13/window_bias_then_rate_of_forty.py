"""A transformer over notes with a local window: its bias has -inf beyond four notes and a slope by distance within, which is right and never makes an empty
row. FAULT at step 110: the schedule's milestones multiply the rate of SGD by 1000 instead of 0.1 (0.04 to 40), and the gradients explode.
Without Rangewatch: loss 2.67 to 1.48 at step 109, 1.53 at 110, 317 at 111, 1.2e13 at 112, NaN from step 113 on.
Variant of: alibi_mask_before_gradients_that_explode.
Cause: learning_rate (clip, where one would have it so). Step: 110. Right: rate / clip. Wrong: attention mask, GradScaler."""
EXPECT = {"cause": ["learning_rate", "clip", "backward_arithmetic"], "step": [109, 116], "place": None, "rank": 0,
          "wrong": ["attention mask", "-inf", "GradScaler"],
          "right": "learning rate|[Cc]lip"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1313); torch.set_num_threads(1)
NOTES, LENGTH, HEADS = 12, 20, 2
distance = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
bias = torch.where((distance >= 0) & (distance <= 4), -0.5 * distance.float(), float("-inf"))
leads = (2.0 * torch.randn(NOTES, NOTES)).softmax(1)


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        q, k, v = (each.unflatten(2, (HEADS, -1)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, 2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class Melody(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.note, self.layers, self.next = nn.Embedding(NOTES, width), nn.Sequential(Layer(width), Layer(width)), nn.Linear(width, NOTES)

    def forward(self, x):
        return self.next(self.layers(self.note(x)))


def melodies(n):
    rows = [torch.randint(0, NOTES, (n,))]
    for _ in range(LENGTH):
        rows.append(torch.multinomial(leads[rows[-1]], 1)[:, 0])
    return torch.stack(rows, 1)


model = Melody()
optimizer = torch.optim.SGD(model.parameters(), lr=0.04, momentum=0.9)
schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [110, 170], gamma=1000.0)  # meant: 0.1
handle = rangewatch.attach(model, optimizer)
for step in range(210):
    x = melodies(16)
    loss = F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.get_total_norm([each.grad for each in model.parameters()])
    optimizer.step()
    schedule.step()
    if step % 20 == 0 or 108 < step < 117:
        print(step, loss.item(), "gradient norm", norm.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
