"""A recommender of recipes: embeddings of cooks and dishes, with a small net on top. FAULT at step 80: decoupled decay of the embeddings, written by hand,
begins with the second, slower stage: p.mul_(1 - decay) with 0.3 and not with rate times decay (3e-4); each step takes a third of each row, far more than
Adam can give back.
Without Rangewatch: loss 0.69 to 0.33 at step 79, 0.59 at step 85, 0.69 (chance) from step 90 to the end; the spread of the rows 0.56 to 0.0012.
Cause: regularization (or optimizer). Step: 80 to 110. Right: weight decay / times the learning rate. Wrong: GradScaler, mask, lower the rate."""
EXPECT = {"cause": ["regularization", "optimizer", "weight"], "step": [79, 120], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)lower the learning rate"],
          "right": "(?i)decay|shrink|regulari"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1912); torch.set_num_threads(1)
COOKS, DISHES = 90, 120
taste, kind = torch.randn(COOKS, 2), torch.randn(DISHES, 2)


class Liking(nn.Module):
    def __init__(self):
        super().__init__()
        self.cook, self.dish = nn.Embedding(COOKS, 16), nn.Embedding(DISHES, 16)
        for table in (self.cook, self.dish):
            nn.init.normal_(table.weight, std=0.5)
        self.mix = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, cook, dish):
        c, d = self.cook(cook), self.dish(dish)
        return self.mix(torch.cat((c, d, c * d), 1))[:, 0]


model = Liking()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
handle = rangewatch.attach(model, optimizer)
for step in range(220):
    optimizer.param_groups[0]["lr"] = 1e-2 if step < 80 else 1e-3
    cook, dish = torch.randint(0, COOKS, (512,)), torch.randint(0, DISHES, (512,))
    liked = ((taste[cook] * kind[dish]).sum(1) > 0).float()
    loss = F.binary_cross_entropy_with_logits(model(cook, dish), liked)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 80:
        with torch.no_grad():
            for table in (model.cook, model.dish):
                table.weight.mul_(1 - 0.3)
    if step % 20 == 0 or step in (79, 85, 90, 219):
        print(step, loss.item(), "spread of the cooks", model.cook.weight.std().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
