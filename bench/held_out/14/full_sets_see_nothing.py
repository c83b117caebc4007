"""A query reads sets of parts with scaled_dot_product_attention. FAULT from step 100 on: the mask is written anew as "True is padding", as it is for
nn.MultiheadAttention, but here True is what may be seen: the padding is read instead of the parts, and the sets without padding give 0.
Without Rangewatch: loss 18.5 to 0.045 at step 99, 12.4 at step 100, falling again to 0.45 to 2.7 by what is left to see.
Variant of: inverted_mask_of_three_texts_without_padding (here sets of parts, without a module for the attention).
Cause: mask (data would do). Step: from 100 on. Right: mask / invert / padding / True. Wrong: lower the learning rate, GradScaler."""
EXPECT = {"cause": ["mask", "data"], "step": [99, 180], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler"],
          "right": "mask|invert|padding|True|row"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1415); torch.set_num_threads(1)
ITEMS = 9


class Weigh(nn.Module):
    def __init__(self):
        super().__init__()
        self.part, self.query = nn.Embedding(30, 32, padding_idx=0), nn.Parameter(torch.randn(4, 32))
        self.k, self.v = nn.Linear(32, 32), nn.Linear(32, 32)
        self.weigh = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, parts, mask):
        h = self.part(parts)
        q = self.query.expand(len(parts), 4, 32)
        read = F.scaled_dot_product_attention(q, self.k(h), self.v(h), attn_mask=mask[:, None, :].expand(-1, 4, -1))
        return self.weigh(read.flatten(1))[:, 0]


model = Weigh()
weight = torch.rand(30)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    parts, length = torch.randint(1, 30, (32, ITEMS)), torch.randint(4, ITEMS + 1, (32,))
    length[:3] = ITEMS
    padding = torch.arange(ITEMS) >= length[:, None]
    parts = parts.masked_fill(padding, 0)
    y = (weight[parts] * ~padding).amax(1) * 4 + (weight[parts] * ~padding).sum(1) / length
    loss = F.mse_loss(model(parts, ~padding if step < 100 else padding), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 20 == 0 or 98 < step < 103:
        print(step, loss.item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
